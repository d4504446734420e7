// The map of a step: a rectangle for each buffer, from birth to last use and to drop.

const LEFT = 78, BOTTOM = 24, TOP = 8, RIGHT = 8;

class StepMap {
  constructor(canvas, is_small) {
    this.canvas = canvas;
    this.is_small = is_small;
    this.hovered = -1;
  }

  show(kind, layout, colour_by, top) {
    this.kind = kind;
    this.columns = unpack(kind);
    this.offsets = this.columns.layouts[layout];
    this.layout = layout;
    this.colours = colours(kind, colour_by);
    this.top = top ?? top_of(kind, layout);
    this.hovered = -1;
    this.fit();
  }

  // The bytes of the step, and what little is needed to see where they begin.
  fit() {
    const high = Math.max(this.top, this.columns.begin + 1), span = high - this.columns.begin;
    this.view = {x0: 0, x1: this.kind.moments, y0: Math.max(0, this.columns.begin - span * .06), y1: high + span * .04};
    this.draw();
  }

  // From the first byte on, and all of a region.
  whole() {
    const region = data.region;
    this.view = {x0: 0, x1: this.kind.moments, y0: 0, y1: region ? region.capacity_bytes : this.top * 1.04};
    this.draw();
  }

  box() {
    const left = LEFT;
    return {x: left, y: TOP, width: this.canvas.clientWidth - left - RIGHT, height: this.canvas.clientHeight - TOP - BOTTOM};
  }

  draw() {
    const {context, height} = prepared(this.canvas), box = this.box(), view = this.view, columns = this.columns;
    const scale_x = box.width / (view.x1 - view.x0), scale_y = box.height / (view.y1 - view.y0);
    const x_of = moment => box.x + (moment - view.x0) * scale_x;
    const y_of = bytes => box.y + box.height - (bytes - view.y0) * scale_y;
    context.save();
    context.beginPath();
    context.rect(box.x, box.y, box.width, box.height);
    context.clip();
    this.draw_bands(context, box, y_of);
    const pale = is_dark() ? .45 : .38;
    for (let i = 0; i < columns.count; i++) {
      const offset = this.offsets[i], bytes = columns.bytes[i], birth = columns.birth[i], death = columns.death[i];
      if (offset < 0 || death < view.x0 || birth > view.x1 || offset > view.y1 || offset + bytes < view.y0) continue;
      const x = x_of(birth), w = (death - birth) * scale_x, h = bytes * scale_y, y = y_of(offset) - h;
      // What is smaller than a pixel is drawn as one, so that many of them are seen.
      const drawn_w = Math.max(w, .7), drawn_h = Math.max(h, .7);
      context.fillStyle = this.colours.of(i);
      if (columns.used[i] > 0) {
        const used = Math.min(Math.max(columns.used[i] * scale_x, .7), drawn_w);
        context.fillRect(x, y, used, drawn_h);
        if (drawn_w > used) {
          context.globalAlpha = pale;
          context.fillRect(x + used, y, drawn_w - used, drawn_h);
          context.globalAlpha = 1;
        }
      } else {
        context.fillRect(x, y, drawn_w, drawn_h);
      }
      if (w > 4 && h > 4) {
        context.strokeStyle = shade_ground;
        context.lineWidth = .6;
        context.strokeRect(x, y, w, h);
      }
    }
    this.draw_plan(context, box, y_of);
    const peak = x_of(this.kind.peak_moment);
    context.strokeStyle = shade_accent;
    context.setLineDash([4, 3]);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(peak, box.y);
    context.lineTo(peak, box.y + box.height);
    const reach = y_of(this.layout === 'recorded' ? top_of(this.kind, 'recorded') : top_of(this.kind, this.layout));
    context.moveTo(box.x, reach);
    context.lineTo(box.x + box.width, reach);
    context.stroke();
    context.setLineDash([]);
    context.restore();
    this.draw_axes(context, box, height, x_of, y_of);
    // Kept, so that pointing at a buffer does not draw all of them again.
    this.picture ??= document.createElement('canvas');
    this.picture.width = this.canvas.width;
    this.picture.height = this.canvas.height;
    this.picture.getContext('2d').drawImage(this.canvas, 0, 0);
    this.draw_outline();
  }

  draw_outline() {
    const {context, width, height} = prepared(this.canvas), box = this.box(), view = this.view;
    context.drawImage(this.picture, 0, 0, width, height);
    if (this.hovered < 0) return;
    const scale_x = box.width / (view.x1 - view.x0), scale_y = box.height / (view.y1 - view.y0);
    const x_of = moment => box.x + (moment - view.x0) * scale_x, y_of = bytes => box.y + box.height - (bytes - view.y0) * scale_y;
    context.save();
    context.beginPath();
    context.rect(box.x, box.y, box.width, box.height);
    context.clip();
    this.outline(context, x_of, y_of, scale_x, scale_y);
    context.restore();
  }

  outline(context, x_of, y_of, scale_x, scale_y) {
    const i = this.hovered, columns = this.columns, h = Math.max(2, columns.bytes[i] * scale_y);
    context.strokeStyle = shade_text;
    context.lineWidth = 2;
    context.strokeRect(x_of(columns.birth[i]), y_of(this.offsets[i]) - h, Math.max(2, columns.life[i] * scale_x), h);
  }

  // What is no buffer of the step: persistent, kept, a plan.
  bands() {
    const region = data.region, begin = this.columns.begin, bands = [];
    const low = region ? region.mark_bytes : begin;
    if (low > 0) bands.push({name: region ? 'persistent' : 'live through the step', from: 0, to: low, step: 9, back: false});
    if (region) {
      const floor = this.kind.kept_floor_bytes ?? region.capacity_bytes;
      if (floor < region.capacity_bytes) bands.push({name: 'kept', from: floor, to: region.capacity_bytes, step: 9, back: true});
    }
    return bands;
  }

  draw_bands(context, box, y_of) {
    for (const band of this.bands()) {
      const y = y_of(band.to), height = y_of(band.from) - y;
      const visible_y = Math.max(y, box.y), visible = Math.min(y + height, box.y + box.height) - visible_y;
      hatch(context, [box.x, visible_y, box.width, visible], shade_soft, band.step, band.back);
      if (visible > 16) label(context, band.name, box.x + 6, visible_y + visible / 2 + 4);
    }
  }

  // The frame of the plan, over its buffers.
  draw_plan(context, box, y_of) {
    if (this.layout === 'planned' || (this.layout === 'recorded' && this.kind.mode && this.kind.mode !== 'bump')) {
      const from = this.columns.begin, y = y_of(from + this.kind.plan_bytes), height = y_of(from) - y;
      context.strokeStyle = shade_text;
      context.lineWidth = 1.5;
      context.strokeRect(box.x + 1, y, box.width - 2, height);
      if (height > 30) label(context, 'plan', box.x + 6, y + 14);
    }
  }

  draw_axes(context, box, height, x_of, y_of) {
    const view = this.view;
    context.fillStyle = shade_soft;
    context.strokeStyle = shade_soft;
    context.lineWidth = 1;
    context.textAlign = 'right';
    for (const value of ticks(view.y0, view.y1, Math.max(2, box.height / 48), true)) {
      const y = y_of(value);
      if (y < box.y + 4) continue;
      context.fillText(readable(value), box.x - 6, y + 4);
      context.beginPath();
      context.moveTo(box.x - 4, y);
      context.lineTo(box.x, y);
      context.stroke();
    }
    context.textAlign = 'center';
    for (const value of ticks(view.x0, view.x1, Math.max(2, box.width / 90), false)) {
      if (value % 1 === 0 && x_of(value) < box.x + box.width - 20) context.fillText(exact(value), x_of(value), height - 7);
    }
    context.textAlign = 'left';
    context.strokeRect(box.x, box.y, box.width, box.height);
  }

  // The buffer at a place of the canvas, the smallest if several are.
  at(x, y) {
    const box = this.box(), view = this.view, columns = this.columns;
    const per_x = (view.x1 - view.x0) / box.width, per_y = (view.y1 - view.y0) / box.height;
    const moment = view.x0 + (x - box.x) * per_x, byte = view.y0 + (box.y + box.height - y) * per_y;
    let best = -1;
    for (let i = 0; i < columns.count; i++) {
      const offset = this.offsets[i];
      if (offset < 0) continue;
      const right = Math.max(columns.death[i], columns.birth[i] + per_x * 2), top = Math.max(columns.bytes[i], per_y * 2);
      if (moment < columns.birth[i] || moment >= right || byte < offset || byte >= offset + top) continue;
      if (best < 0 || columns.bytes[i] < columns.bytes[best]) best = i;
    }
    return best;
  }

  describe(i) {
    const columns = this.columns, kind = this.kind, name = number => number > 0 ? kind.labels[number - 1] : null;
    const lines = [`${name(columns.who[i]) ?? `buffer ${i}`}`];
    lines.push(`${exact(columns.bytes[i])} bytes (${readable(columns.bytes[i])}), aligned to ${2 ** columns.alignment_log2[i]}, at ${exact(this.offsets[i])}`);
    if (name(columns.tag[i])) lines.push(`tag ${name(columns.tag[i])}`);
    if (name(columns.scope[i])) lines.push(`scope ${name(columns.scope[i])}`);
    const ends = columns.death[i] >= kind.moments ? 'the end of the step' : exact(columns.death[i]);
    lines.push(`lives from ${columns.carried[i] ? 'before the step' : exact(columns.birth[i])} to ${ends}` + (columns.used[i] > 0 ? `, used until ${exact(columns.birth[i] + columns.used[i])}` : ''));
    return lines.join('\n');
  }

  zoom(factor, x, y) {
    const box = this.box(), view = this.view;
    const share_x = Math.min(1, Math.max(0, (x - box.x) / box.width)), share_y = Math.min(1, Math.max(0, (box.y + box.height - y) / box.height));
    const along = (from, to, share, least) => {
      const size = Math.max(least, (to - from) * factor), at = from + (to - from) * share;
      return [at - size * share, at + size * (1 - share)];
    };
    [view.x0, view.x1] = along(view.x0, view.x1, share_x, 2);
    [view.y0, view.y1] = along(view.y0, view.y1, share_y, 16);
    this.keep_inside();
    this.draw();
  }

  pan(dx, dy) {
    const box = this.box(), view = this.view;
    const x = dx * (view.x1 - view.x0) / box.width, y = dy * (view.y1 - view.y0) / box.height;
    view.x0 -= x; view.x1 -= x; view.y0 += y; view.y1 += y;
    this.keep_inside();
    this.draw();
  }

  keep_inside() {
    const view = this.view, most_y = (data.region ? Math.max(data.region.capacity_bytes, this.top) : this.top) * 1.1 + 1;
    const inside = (from, to, most) => {
      const size = Math.min(to - from, most), begin = Math.min(Math.max(from, 0), most - size);
      return [begin, begin + size];
    };
    [view.x0, view.x1] = inside(view.x0, view.x1, this.kind.moments);
    [view.y0, view.y1] = inside(view.y0, view.y1, most_y);
  }
}

// A text that can be read on anything.
function label(context, text, x, y) {
  context.textAlign = 'left';
  context.fillStyle = shade_ground;
  context.fillRect(x - 3, y - 12, context.measureText(text).width + 6, 16);
  context.fillStyle = shade_text;
  context.fillText(text, x, y);
}
