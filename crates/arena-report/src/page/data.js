'use strict';
// The data of the page, and how numbers and colours are shown.

const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);

function readable(bytes) {
  const units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = -1, size = bytes;
  while (size >= 1024 && unit + 1 < units.length) { size /= 1024; unit++; }
  return unit < 0 ? `${bytes} bytes` : `${size.toFixed(2)} ${units[unit]}`;
}

const exact = bytes => bytes === null || bytes === undefined ? '' : bytes.toLocaleString('en');

// A column is one value or an array of them.
function column(values, count) {
  return typeof values === 'number' ? new Float64Array(count).fill(values) : Float64Array.from(values);
}

// The columns of a kind of step, unpacked once. Offsets are from the bottom of what is drawn.
function unpack(kind) {
  if (kind.unpacked) return kind.unpacked;
  const packed = kind.buffers, count = packed.count, columns = {count};
  for (const name of ['birth', 'life', 'used', 'bytes', 'alignment_log2', 'carried', 'planned', 'who', 'scope', 'tag']) {
    columns[name] = column(packed[name], count);
  }
  const birth = columns.birth;
  for (let i = 1; i < count; i++) birth[i] += birth[i - 1];
  columns.death = birth.map((begin, i) => begin + columns.life[i]);
  // Where a bump puts them: each above the one before.
  const bumped = new Float64Array(count);
  let cursor = 0;
  for (let i = 0; i < count; i++) {
    if (columns.carried[i]) continue;
    const alignment = 2 ** columns.alignment_log2[i];
    cursor = Math.ceil(cursor / alignment) * alignment;
    bumped[i] = cursor;
    cursor += columns.bytes[i];
  }
  const region = data.region, begin = region ? Math.max(region.mark_bytes, kind.start_bytes ?? 0) : kind.through_bytes;
  const raised = offsets => offsets.map((offset, i) => columns.carried[i] ? -1 : begin + offset);
  columns.layouts = {bumped: raised(bumped), planned: raised(columns.planned)};
  if (packed.recorded !== null) {
    const recorded = column(packed.recorded, count);
    columns.layouts.recorded = region ? recorded : recorded.map(offset => begin + offset);
  }
  columns.begin = begin;
  kind.unpacked = columns;
  return columns;
}

// How high a layout of a kind reaches.
function top_of(kind, layout) {
  const columns = unpack(kind), offsets = columns.layouts[layout];
  let top = columns.begin;
  for (let i = 0; i < columns.count; i++) if (offsets[i] >= 0) top = Math.max(top, offsets[i] + columns.bytes[i]);
  return top;
}

// Differ in hue and, next to each other, in lightness: also without colour.
const PALETTE = ['#1f5fa8', '#f2b134', '#2e8b57', '#e98ac1', '#7a3e9d', '#8fd0e8', '#b5482f', '#c5e1a5', '#3f4a56', '#ff9d5c', '#4f7f86', '#e6d7ff'];
const OTHER = '#9aa0a6';
const is_dark = () => matchMedia('(prefers-color-scheme: dark)').matches;
const shade = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The colour of each label, those that hold most at the peak first; and their legend.
function colours(kind, by) {
  const columns = unpack(kind), weights = new Map();
  const label = i => by === 'size' ? Math.floor(Math.log2(Math.max(16, columns.bytes[i])) / 4) : columns[by][i];
  for (let i = 0; i < columns.count; i++) {
    const is_at_peak = columns.birth[i] <= kind.peak_moment && kind.peak_moment < columns.death[i];
    const key = label(i);
    weights.set(key, (weights.get(key) ?? 0) + (is_at_peak ? columns.bytes[i] : columns.bytes[i] / 1e6));
  }
  const order = [...weights.keys()].sort(by === 'size' ? (a, b) => b - a : (a, b) => weights.get(b) - weights.get(a));
  const of = new Map(order.slice(0, PALETTE.length).map((key, place) => [key, PALETTE[place]]));
  const name = key => by === 'size' ? `${readable(2 ** (4 * key))} and more` : key === 0 ? 'not said by the file' : kind.labels[key - 1];
  const legend = [...of].map(([key, colour]) => [name(key), colour]);
  if (order.length > of.size) legend.push([`${order.length - of.size} others`, OTHER]);
  return {of: i => of.get(label(i)) ?? OTHER, legend};
}

// A canvas of the size that it has on the screen, ready to be drawn on.
function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '12px system-ui, sans-serif';
  return {context, width, height};
}

// Lines across a surface, for what is no buffer of the step.
function hatch(context, box, colour, step, back) {
  const [x, y, width, height] = box;
  if (width <= 0 || height <= 0) return;
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = -height; at < width + height; at += step) {
    context.moveTo(x + at, y);
    context.lineTo(x + at + height, y + height);
    if (back) {
      context.moveTo(x + at, y + height);
      context.lineTo(x + at + height, y);
    }
  }
  context.stroke();
  context.restore();
}

// Round values for an axis from 0, at most so many. Bytes go in powers of two.
function ticks(from, to, most, of_bytes) {
  const span = Math.max(to - from, of_bytes ? 1 : 1e-12), base = of_bytes ? 2 : 10;
  let step = base ** Math.floor(Math.log(span / most) / Math.log(base));
  if (of_bytes) step = Math.max(1, step);
  for (const factor of of_bytes ? [1, 2, 4, 8] : [1, 2, 5, 10, 20, 50]) {
    if (span / (step * factor) <= most) { step *= factor; break; }
  }
  const values = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) values.push(value);
  return values;
}

function add(parent, name, text, attributes = {}) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

// A line of a legend, with a sample that is drawn.
function legend_item(parent, text, draw) {
  const item = document.createElement('li');
  const sample = add(item, 'canvas');
  add(item, 'span', text);
  parent.append(item);
  const {context, width, height} = prepared(sample);
  draw(context, width || 22, height || 14);
}
