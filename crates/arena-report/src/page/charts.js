// Figures over the steps: memory, and what the program told.

class Chart {
  constructor(canvas, lines, options = {}) {
    this.canvas = canvas;
    this.lines = lines.filter(line => line.values.some(value => value !== null));
    this.options = options;
    this.hovered = -1;
  }

  box() {
    return {x: 78, y: 22, width: this.canvas.clientWidth - 90, height: this.canvas.clientHeight - 48};
  }

  draw() {
    const {context, height} = prepared(this.canvas), box = this.box(), count = this.lines[0].values.length;
    const all = this.lines.flatMap(line => line.values.filter(value => value !== null));
    let low = this.options.from_zero ? 0 : all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
    if (high <= low) high = low + 1;
    const x_of = step => box.x + (step + .5) * box.width / count;
    const y_of = value => box.y + box.height - (value - low) * box.height / ((high - low) * 1.05);
    const text = this.options.of_bytes ? readable : value => String(Number(value.toPrecision(4)));
    context.fillStyle = shade_soft;
    context.strokeStyle = shade_rule;
    context.lineWidth = 1;
    context.textAlign = 'right';
    for (const value of ticks(low, high * 1.02, Math.max(2, box.height / 44), this.options.of_bytes)) {
      context.fillText(text(value), box.x - 6, y_of(value) + 4);
      context.beginPath();
      context.moveTo(box.x, y_of(value));
      context.lineTo(box.x + box.width, y_of(value));
      context.stroke();
    }
    context.textAlign = 'center';
    for (const value of ticks(0, count - 1, Math.max(2, box.width / 80), false)) {
      if (value % 1 === 0) context.fillText(exact(value), x_of(value), height - 8);
    }
    for (const line of this.lines) {
      context.strokeStyle = line.colour;
      context.fillStyle = line.colour;
      context.lineWidth = line.width ?? 1.6;
      context.setLineDash(line.dash ?? []);
      context.beginPath();
      let is_down = false;
      line.values.forEach((value, step) => {
        if (value === null) { is_down = false; return; }
        if (is_down) context.lineTo(x_of(step), y_of(value)); else context.moveTo(x_of(step), y_of(value));
        is_down = true;
      });
      context.stroke();
      context.setLineDash([]);
      // A line of one step is a point.
      if (count <= 60) line.values.forEach((value, step) => { if (value !== null) { context.beginPath(); context.arc(x_of(step), y_of(value), 2.2, 0, 7); context.fill(); } });
    }
    for (const mark of this.options.marks ?? []) {
      context.fillStyle = shade_text;
      context.strokeStyle = shade_text;
      draw_mark(context, mark.shape, x_of(mark.step), 12);
    }
    if (this.hovered >= 0) {
      context.strokeStyle = shade_text;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x_of(this.hovered), box.y);
      context.lineTo(x_of(this.hovered), box.y + box.height);
      context.stroke();
    }
    context.textAlign = 'left';
  }

  step_at(x) {
    const box = this.box(), count = this.lines[0].values.length;
    return Math.min(count - 1, Math.max(0, Math.floor((x - box.x) / box.width * count)));
  }
}

// Marks of events, told apart by their shape.
const SHAPES = {reset: 'tick', plan: 'triangle', deviation: 'diamond', failure: 'cross'};

function draw_mark(context, shape, x, y) {
  context.beginPath();
  context.lineWidth = 1.6;
  if (shape === 'tick') { context.lineWidth = 1; context.moveTo(x, y + 2); context.lineTo(x, y + 7); context.stroke(); }
  if (shape === 'triangle') { context.moveTo(x - 5, y + 5); context.lineTo(x + 5, y + 5); context.lineTo(x, y - 5); context.fill(); }
  if (shape === 'diamond') { context.moveTo(x - 5, y); context.lineTo(x, y - 5); context.lineTo(x + 5, y); context.lineTo(x, y + 5); context.closePath(); context.stroke(); }
  if (shape === 'cross') { context.moveTo(x - 4, y - 4); context.lineTo(x + 4, y + 4); context.moveTo(x + 4, y - 4); context.lineTo(x - 4, y + 4); context.stroke(); }
}

// What happened in the steps: those of many steps are thinned out, except for failures.
function marks() {
  const steps = data.steps, found = [];
  let mode = null;
  steps.name.forEach((_, step) => {
    const is_planned = steps.mode[step] !== null && steps.mode[step] !== 'bump';
    if (steps.failed[step] !== null) found.push({step, shape: SHAPES.failure});
    else if (steps.deviations[step] > 0) found.push({step, shape: SHAPES.deviation});
    else if (is_planned && steps.mode[step] !== mode) found.push({step, shape: SHAPES.plan});
    else if (steps.used_bytes[step] !== null && steps.name.length <= 200) found.push({step, shape: SHAPES.reset});
    mode = steps.mode[step];
  });
  return found;
}

function series_chart() {
  const steps = data.steps;
  return new Chart($('series'), [
    {name: 'capacity', colour: shade_soft, dash: [1, 3], values: steps.name.map(() => data.region ? data.region.capacity_bytes : null)},
    {name: 'held by the recorded allocator', colour: '#7a3e9d', dash: [7, 3], values: steps.held_bytes},
    {name: 'committed', colour: '#7a3e9d', dash: [7, 3], values: steps.committed_bytes},
    {name: 'used at most (high-water)', colour: '#d98200', values: steps.high_water_bytes},
    {name: 'used after the reset', colour: '#2e8b57', dash: [2, 2], values: steps.used_bytes},
    {name: 'live at most', colour: '#2f7fd0', width: 2.4, values: steps.live_peak_bytes},
  ], {from_zero: true, of_bytes: true, marks: marks()});
}

function describe_step(step) {
  const steps = data.steps, lines = [steps.name[step]];
  const size = (name, values) => { if (values[step] !== null) lines.push(`${name} ${exact(values[step])} bytes (${readable(values[step])})`); };
  size('live at most', steps.live_peak_bytes);
  size('sum', steps.sum_bytes);
  size('high-water', steps.high_water_bytes);
  size('used at its end', steps.used_bytes);
  size('committed', steps.committed_bytes);
  size('kept', steps.kept_bytes);
  size('held', steps.held_bytes);
  if (steps.mode[step] !== null) lines.push(`mode ${steps.mode[step]}`);
  if (steps.deviations[step] > 0) lines.push(`${steps.deviations[step]} deviations`);
  if (steps.failed[step] !== null) lines.push(`failed: ${steps.failed[step]}`);
  if (steps.loss[step] !== null) lines.push(`loss ${steps.loss[step]}`);
  return lines.join('\n');
}
