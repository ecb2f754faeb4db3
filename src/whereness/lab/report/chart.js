// The curves: loss against length. Draws from the page's own data and asks for nothing else.
(() => {
  'use strict';
  const source = document.getElementById('chart-data');
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const plot = document.getElementById('plot');
  const byId = (id) => document.getElementById(id);
  const SHAPES = [ // of radius 4 or so around 0
    'M-4,0a4,4 0 1,0 8,0a4,4 0 1,0-8,0z', 'M-3.5-3.5h7v7h-7z', 'M0-4.7L4.4,3.3H-4.4z',
    'M0-5L4.6,0L0,5L-4.6,0z', 'M0,4.7L4.4-3.3H-4.4z', 'M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z',
    'M-4.4-2.2l2.2-2.2L0-2.2l2.2-2.2 2.2 2.2L2.2,0l2.2,2.2-2.2,2.2L0,2.2l-2.2,2.2-2.2-2.2L-2.2,0z',
  ];
  const state = { part: 'whole', shown: 'loss', reference: '', hidden: new Set(), at: data.lengths.length - 1 };
  const colour = (i) => data.colours[i % data.colours.length];
  const shape = (i) => SHAPES[i % SHAPES.length];
  const rows = [];

  function make(parent, tag, attributes, text) {
    const element = document.createElementNS(plot.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  // [mean, low, high] of a series at length number i, as it is shown; low and high may be missing.
  function value(series, i) {
    const own = series[state.part][i];
    if (!own || state.shown === 'loss') return own;
    const whole = state.part === 'whole';
    if (state.reference === '') {
      if (whole) return series.above[i];
      const best = Math.min(...data.series.map((s) => s.quarter[i]).filter(Boolean).map((v) => v[0]));
      return [own[0] - best];
    }
    const other = data.series[state.reference - 1];
    if (!other[state.part][i]) return null;
    // The intervals of differences that the summary has are those to the best of a length.
    if (whole && series.best[i] === other.name) return series.above[i];
    return [own[0] - other[state.part][i][0]];
  }

  // Differences are known better than losses: a digit more.
  function text(number, difference) {
    const plain = number.toFixed(difference ? 3 : 2);
    const sign = Number(plain) < 0 ? '\u2212' : difference && Number(plain) > 0 ? '+' : '';
    return sign + plain.replace('-', '');
  }
  const visible = () => data.series.map((series, i) => ({ series, i })).filter(({ i }) => !state.hidden.has(i));

  function steps(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
    return { ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  function draw() {
    const width = plot.clientWidth, height = plot.clientHeight, shown = visible();
    const named = width > 560 && shown.length <= 16;
    const right = width - (named ? 34 + 7 * Math.max(...shown.map(({ series }) => series.name.length), 4) : 14);
    const box = { left: 46, right, top: 20, bottom: height - 40 };
    plot.setAttribute('viewBox', `0 0 ${width} ${height}`);
    plot.replaceChildren();
    const logs = data.lengths.map(Math.log2);
    const span = logs.at(-1) - logs[0];
    const x = (i) => (span ? box.left + 10 + (box.right - box.left - 20) * (logs[i] - logs[0]) / span : (box.left + box.right) / 2);
    const numbers = shown.flatMap(({ series }) => data.lengths.flatMap((_, i) => value(series, i) || []));
    if (state.shown === 'difference') numbers.push(0);
    let low = Math.min(...numbers, numbers.length ? Infinity : 0), high = Math.max(...numbers, numbers.length ? -Infinity : 1);
    if (high - low < 1e-6) { low -= 0.05; high += 0.05; }
    const room = (high - low) * 0.04;
    low -= room; high += room;
    const y = (v) => box.bottom - (box.bottom - box.top) * (v - low) / (high - low);
    state.x = x;

    const { ticks, digits } = steps(low, high, height / 60);
    for (const tick of ticks) {
      const zero = state.shown === 'difference' && Math.abs(tick) < 1e-9;
      make(plot, 'line', { class: zero ? 'zero' : 'grid', x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) });
      make(plot, 'text', { x: box.left - 8, y: y(tick) + 4, 'text-anchor': 'end' }, tick.toFixed(digits).replace('-', '\u2212'));
    }
    make(plot, 'text', { x: 0, y: 12 }, 'nats/byte');
    let last = -Infinity;
    data.lengths.forEach((length, i) => {
      if (x(i) - last < 34 && i !== state.at) return;
      last = x(i);
      make(plot, 'text', { x: x(i), y: box.bottom + 18, 'text-anchor': 'middle' }, length);
    });
    make(plot, 'text', { x: (box.left + box.right) / 2, y: box.bottom + 35, 'text-anchor': 'middle' }, 'length in bytes');
    const trained = data.lengths.indexOf(data.trained);
    if (trained >= 0 && span) {
      make(plot, 'line', { class: 'zero', x1: x(trained), x2: x(trained), y1: 4, y2: box.bottom, 'stroke-dasharray': '1 3' });
      make(plot, 'text', { x: x(trained) + 14, y: 12 }, `trained at ${data.trained}`);
    }

    const labels = [], single = Math.min(28, (box.right - box.left - 30) / Math.max(shown.length, 1));
    shown.forEach((entry, n) => { entry.aside = span ? 0 : (n - (shown.length - 1) / 2) * single; });
    for (const { series, i, aside } of shown.reverse()) {
      const group = make(plot, 'g', { class: 'series', 'data-series': i });
      const points = data.lengths.map((_, k) => ({ k, v: value(series, k) })).filter(({ v }) => v);
      const banded = points.filter(({ v }) => v.length === 3);
      if (banded.length > 1) {
        const there = banded.map(({ k, v }) => `${x(k)},${y(v[2])}`), back = banded.map(({ k, v }) => `${x(k)},${y(v[1])}`).reverse();
        make(group, 'path', { class: 'band', d: `M${[...there, ...back].join('L')}z`, fill: colour(i), 'fill-opacity': shown.length <= 5 || !i ? 0.12 : 0.035 });
      } else if (banded.length) {
        const { k, v } = banded[0];
        make(group, 'path', { class: 'band', d: `M${x(k) + aside},${y(v[1])}V${y(v[2])}`, stroke: colour(i), 'stroke-width': 2, 'stroke-opacity': 0.5 });
      }
      const lines = { solid: '', dashed: '' };
      points.slice(1).forEach((to, n) => {
        const from = points[n], beyond = series.untrained !== null && data.lengths[to.k] > series.untrained;
        lines[beyond ? 'dashed' : 'solid'] += `M${x(from.k)},${y(from.v[0])}L${x(to.k)},${y(to.v[0])}`;
      });
      for (const [kind, d] of Object.entries(lines)) {
        if (d) make(group, 'path', { class: `curve ${kind}`, d, fill: 'none', stroke: colour(i), 'stroke-width': 2, 'stroke-dasharray': kind === 'dashed' ? '6 4' : 'none' });
      }
      for (const { k, v } of points) make(group, 'path', { class: 'point', d: shape(i), transform: `translate(${x(k) + aside} ${y(v[0])})`, fill: colour(i) });
      if (points.length) labels.push({ series, i, group, left: x(points.at(-1).k) + aside, from: y(points.at(-1).v[0]) });
    }
    if (named) place(labels, box);
    if (span) make(plot, 'line', { class: 'cursor', y1: box.top, y2: box.bottom, x1: x(state.at), x2: x(state.at) });
    read();
  }

  // Names at the ends of their curves, moved apart where they would touch.
  function place(labels, box) {
    const apart = Math.min(15, (box.bottom - box.top) / Math.max(labels.length, 1));
    labels.sort((a, b) => a.from - b.from).forEach((label, n) => { label.to = Math.max(label.from, n ? labels[n - 1].to + apart : box.top); });
    for (let n = labels.length - 1, limit = box.bottom; n >= 0; n--, limit -= apart) labels[n].to = Math.min(labels[n].to, limit);
    for (const { series, i, group, left, from, to } of labels) {
      make(group, 'path', { class: 'leader', d: `M${left + 7},${from}L${box.right + 14},${to}` });
      make(group, 'path', { d: shape(i), transform: `translate(${box.right + 20} ${to})`, fill: colour(i) });
      make(group, 'text', { class: 'label', x: box.right + 28, y: to + 4 }, series.name);
    }
  }

  // The values at the chosen length, in the legend and for screen readers.
  function read() {
    const plus = state.shown === 'difference', heard = [];
    byId('reading').textContent = `At ${data.lengths[state.at]} bytes${plus ? ', difference' : ''}`;
    data.series.forEach((series, i) => {
      const found = value(series, state.at);
      rows[i].value.textContent = found ? text(found[0], plus) : '\u2013';
      rows[i].interval.textContent = found && found.length === 3 && found[2] > found[1] ? `${text(found[1], plus)} to ${text(found[2], plus)}` : '\u00a0';
      if (found && !state.hidden.has(i)) heard.push(`${series.name} ${text(found[0], plus)}`);
    });
    plot.setAttribute('aria-valuemin', data.lengths[0]);
    plot.setAttribute('aria-valuemax', data.lengths.at(-1));
    plot.setAttribute('aria-valuenow', data.lengths[state.at]);
    plot.setAttribute('aria-valuetext', `${data.lengths[state.at]} bytes: ${heard.join(', ')}`);
    const bare = state.shown === 'difference' && (state.part === 'quarter' || state.reference !== '');
    byId('chart-note').hidden = !bare;
    byId('chart-note').textContent = 'Intervals of differences are known only to the best of a length, over whole windows.';
  }

  function go(i) {
    const at = Math.max(0, Math.min(data.lengths.length - 1, i));
    if (at !== state.at) { state.at = at; draw(); }
  }

  function hide(hidden) {
    state.hidden = hidden;
    rows.forEach(({ button }, i) => button.setAttribute('aria-pressed', String(!hidden.has(i))));
    draw();
  }

  function focus(i) {
    plot.classList.toggle('focused', i !== null && !state.hidden.has(i));
    for (const group of plot.querySelectorAll('.series')) group.classList.toggle('focus', group.dataset.series === String(i));
  }

  data.series.forEach((series, i) => {
    const item = document.createElement('li'), button = document.createElement('button');
    button.type = 'button';
    button.setAttribute('aria-pressed', 'true');
    const swatch = make(button, 'svg', { viewBox: '-16 -8 32 16', 'aria-hidden': 'true' });
    make(swatch, 'path', { d: 'M-16,0H16', stroke: colour(i), 'stroke-width': 2 });
    make(swatch, 'path', { d: shape(i), fill: colour(i) });
    const parts = ['name', 'value', 'interval'].map((part) => {
      const span = document.createElement('span');
      span.className = part;
      button.append(span);
      return span;
    });
    parts[0].textContent = series.name;
    rows.push({ button, value: parts[1], interval: parts[2] });
    button.addEventListener('click', () => {
      const hidden = new Set(state.hidden);
      if (!hidden.delete(i)) hidden.add(i);
      hide(hidden);
    });
    for (const [on, off] of [['pointerenter', 'pointerleave'], ['focus', 'blur']]) {
      button.addEventListener(on, () => focus(i));
      button.addEventListener(off, () => focus(null));
    }
    item.append(button);
    byId('legend').append(item);
  });

  function point(event) {
    const place = event.clientX - plot.getBoundingClientRect().left;
    const distances = data.lengths.map((_, i) => Math.abs(state.x(i) - place));
    go(distances.indexOf(Math.min(...distances)));
  }
  for (const kind of ['pointermove', 'pointerdown']) plot.addEventListener(kind, point);
  plot.addEventListener('keydown', (event) => {
    const last = data.lengths.length - 1;
    const to = { ArrowLeft: state.at - 1, ArrowDown: state.at - 1, ArrowRight: state.at + 1, ArrowUp: state.at + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  });
  for (const name of ['part', 'shown']) {
    for (const input of document.getElementsByName(name)) input.addEventListener('change', () => { state[name] = input.value; draw(); });
  }
  byId('reference').addEventListener('change', (event) => {
    state.reference = event.target.value;
    state.shown = 'difference';
    document.querySelector('input[name=shown][value=difference]').checked = true;
    draw();
  });
  byId('show-all').addEventListener('click', () => hide(new Set()));
  byId('show-best').addEventListener('click', () => hide(new Set(data.series.map((_, i) => i).slice(5))));
  byId('show-best').hidden = data.series.length <= 5;
  new ResizeObserver(draw).observe(plot);
})();
