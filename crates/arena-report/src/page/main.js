// The page: what is chosen, pointed at and drawn.

let shade_ground, shade_text, shade_soft, shade_rule, shade_accent;
function read_shades() {
  [shade_ground, shade_text, shade_soft, shade_rule, shade_accent] = ['--ground', '--text', '--soft', '--rule', '--accent'].map(shade);
}
read_shades();

const map = new StepMap($('map'), false);
const small = {bumped: new StepMap($('bumped'), true), planned: new StepMap($('planned'), true)};
const LAYOUTS = {recorded: 'as recorded', planned: 'planned', bumped: 'bumped'};
const COLOURS = {who: 'line', scope: 'scope', tag: 'tag', size: 'size'};
let kind = data.kinds[0];

function facts() {
  $('line').textContent = data.line;
  const fact = (name, text) => { const pair = add($('facts'), 'div'); add(pair, 'dt', name); add(pair, 'dd', text); };
  fact('file', data.source);
  if (data.region) fact('region', `${data.region.device}, ${readable(data.region.capacity_bytes)}, mark at ${readable(data.region.mark_bytes)}`);
  fact('steps', exact(data.steps.name.length));
  if (data.lost_steps > 0) fact('steps not in the file', exact(data.lost_steps));
  fact('fits in', `${exact(data.fits_bytes)} bytes`);
  if (data.held_bytes !== null) fact('held', `${exact(data.held_bytes)} bytes`);
}

// The choices that make a difference for this step.
function choices(select, names, possible) {
  const before = select.value;
  select.replaceChildren();
  for (const name of possible) add(select, 'option', names[name], {value: name});
  if (possible.includes(before)) select.value = before;
}

function show() {
  const columns = unpack(kind);
  choices($('layout'), LAYOUTS, Object.keys(LAYOUTS).filter(name => name in columns.layouts));
  const differs = name => columns[name].some(value => value > 0);
  choices($('colour'), COLOURS, Object.keys(COLOURS).filter(name => name === 'size' || differs(name)));
  map.show(kind, $('layout').value, $('colour').value);
  $('detail').textContent = 'Point at a buffer.';
  const top = Math.max(top_of(kind, 'bumped'), top_of(kind, 'planned'));
  for (const [name, drawn] of Object.entries(small)) drawn.show(kind, name, $('colour').value, top);
  $('bumped-text').textContent = `bumped: ${exact(kind.bump_bytes)} bytes (${readable(kind.bump_bytes)}), each buffer above the one before`;
  const proof = kind.plan_bytes === kind.proved_bytes ? 'no plan needs less' : `no plan is below ${exact(kind.proved_bytes)}`;
  $('planned-text').textContent = `planned: ${exact(kind.plan_bytes)} bytes (${readable(kind.plan_bytes)}), ${proof}`;
  legend();
  site_table();
}

function legend() {
  const list = $('legend');
  list.replaceChildren();
  for (const [name, colour] of map.colours.legend) {
    legend_item(list, name, (context, width, height) => { context.fillStyle = colour; context.fillRect(0, 0, width, height); });
  }
  if (unpack(kind).used.some(value => value > 0)) {
    legend_item(list, 'after its last use, not yet dropped', (context, width, height) => {
      context.globalAlpha = .38; context.fillStyle = PALETTE[0]; context.fillRect(0, 0, width, height); context.globalAlpha = 1;
    });
  }
  for (const band of map.bands()) {
    legend_item(list, band.name, (context, width, height) => hatch(context, [0, 0, width, height], shade_soft, 6, band.back));
  }
  legend_item(list, 'free', () => {});
  legend_item(list, 'the moment with the most live, and the highest byte', (context, width, height) => {
    context.strokeStyle = shade_accent; context.setLineDash([4, 3]); context.beginPath(); context.moveTo(0, height / 2); context.lineTo(width, height / 2); context.stroke(); context.setLineDash([]);
  });
}

function table(element, heads, rows) {
  element.replaceChildren();
  const head = add(add(element, 'thead'), 'tr');
  heads.forEach(text => add(head, 'th', text));
  const body = add(element, 'tbody');
  for (const row of rows) {
    const line = add(body, 'tr');
    row.forEach(text => add(line, 'td', text));
  }
}

const MOST_ROWS = 200;

function site_table() {
  const order = $('order').value, sorted = [...kind.sites].sort((a, b) => (b[order] ?? -1) - (a[order] ?? -1));
  const rows = sorted.slice(0, MOST_ROWS).map(site => [site.label, exact(site.at_peak_bytes), exact(site.padding_bytes), site.earlier_drop_saves_bytes === null ? 'not known' : exact(site.earlier_drop_saves_bytes), exact(site.sum_bytes), exact(site.buffers)]);
  table($('sites'), ['line', 'bytes at the peak', 'padding, bumped', 'an earlier drop saves', 'sum', 'buffers'], rows);
}

function kind_table() {
  const rows = data.kinds.map(kind => [kind.name, exact(kind.steps), exact(kind.buffers.count), exact(kind.sum_bytes), exact(kind.live_peak_bytes), exact(kind.through_bytes), exact(kind.bump_bytes), exact(kind.plan_bytes), exact(kind.proved_bytes), kind.held ? exact(kind.held.most_bytes) : '']);
  table($('kinds'), ['first step', 'steps alike', 'buffers', 'sum', 'live at most', 'live through', 'bump', 'plan', 'proved', 'held'], rows);
  if (data.left_out > 0) $('left-out').textContent = `${exact(data.left_out)} more kinds are not on this page.`;
}

// Pointing, dragging, the wheel and two fingers.
function listen(canvas) {
  let pinned = -1;
  const pointers = new Map();
  const place = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const point = (x, y) => {
    const found = map.at(x, y);
    if (found !== map.hovered) {
      map.hovered = found >= 0 ? found : pinned;
      map.draw_outline();
      if (map.hovered >= 0) $('detail').textContent = map.describe(map.hovered);
    }
    return found;
  };
  let moved = 0;
  canvas.addEventListener('pointerdown', event => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, place(event)); moved = 0; });
  canvas.addEventListener('pointermove', event => {
    const [x, y] = place(event), before = pointers.get(event.pointerId);
    if (!before) { point(x, y); return; }
    pointers.set(event.pointerId, [x, y]);
    moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    if (pointers.size === 1) { map.pan(x - before[0], y - before[1]); return; }
    const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
    const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) + 1;
    map.zoom(distance(before, other) / distance([x, y], other), (x + other[0]) / 2, (y + other[1]) / 2);
  });
  const up = event => {
    if (pointers.delete(event.pointerId) && moved < 4) { pinned = point(...place(event)); map.hovered = pinned; map.draw_outline(); }
  };
  canvas.addEventListener('pointerup', up);
  canvas.addEventListener('pointercancel', event => pointers.delete(event.pointerId));
  canvas.addEventListener('wheel', event => { event.preventDefault(); map.zoom(1.0015 ** event.deltaY, ...place(event)); }, {passive: false});
  canvas.addEventListener('keydown', event => {
    const moves = {ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40]};
    if (event.key in moves) { event.preventDefault(); map.pan(...moves[event.key]); }
    if (event.key === '+' || event.key === '-') zoom_middle(event.key === '+' ? .7 : 1 / .7);
  });
}

function zoom_middle(factor) {
  map.zoom(factor, LEFT + (map.canvas.clientWidth - LEFT) / 2, map.canvas.clientHeight / 2);
}

let charts = [];
function make_charts() {
  charts = [series_chart()];
  const list = $('series-legend');
  list.replaceChildren();
  for (const line of charts[0].lines) {
    legend_item(list, line.name, (context, width, height) => {
      context.strokeStyle = line.colour; context.lineWidth = 2; context.setLineDash(line.dash ?? []);
      context.beginPath(); context.moveTo(0, height / 2); context.lineTo(width, height / 2); context.stroke();
    });
  }
  const shapes = new Set(charts[0].options.marks.map(mark => mark.shape));
  for (const [name, shape] of Object.entries(SHAPES).filter(([, shape]) => shapes.has(shape))) {
    legend_item(list, name, (context, width, height) => {
      context.fillStyle = shade_text; context.strokeStyle = shade_text; draw_mark(context, shape, width / 2, height / 2);
    });
  }
  const steps = data.steps, told = values => values.some(value => value !== null);
  if (told(steps.loss)) charts.push(new Chart($('loss'), [{colour: '#2f7fd0', values: steps.loss}]));
  if (told(steps.throughput)) charts.push(new Chart($('throughput'), [{colour: '#2e8b57', values: steps.throughput}], {from_zero: true}));
  $('progress-section').hidden = !told(steps.loss) && !told(steps.throughput);
  $('loss').parentElement.hidden = !told(steps.loss);
  $('throughput').parentElement.hidden = !told(steps.throughput);
}

function draw_all() {
  read_shades();
  map.draw();
  Object.values(small).forEach(drawn => drawn.draw());
  make_charts();
  charts.forEach(chart => chart.draw());
  legend();
}

facts();
data.kinds.forEach((kind, place) => add($('kind'), 'option', kind.steps > 1 ? `${kind.name} and ${exact(kind.steps - 1)} alike` : kind.name, {value: place}));
$('kind').addEventListener('change', event => { kind = data.kinds[event.target.value]; show(); });
$('layout').addEventListener('change', () => show());
$('colour').addEventListener('change', () => show());
$('order').addEventListener('change', site_table);
$('in').addEventListener('click', () => zoom_middle(.6));
$('out').addEventListener('click', () => zoom_middle(1 / .6));
$('fit').addEventListener('click', () => map.fit());
$('whole').addEventListener('click', () => map.whole());
listen($('map'));
$('series').addEventListener('pointermove', event => {
  const step = charts[0].step_at(event.clientX - event.target.getBoundingClientRect().left);
  charts[0].hovered = step;
  charts[0].draw();
  $('series-detail').textContent = describe_step(step);
});
show();
kind_table();
make_charts();
charts.forEach(chart => chart.draw());
addEventListener('resize', draw_all);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw_all);
document.documentElement.dataset.ready = String(Math.round(performance.now()));
