// The page: connects its elements with the app.

import './style.css';
import { App } from './app';
import { MINE } from './dataset';
import { byId, make, setIcon } from './dom';
import { Recorder, savePicture } from './export';
import { Legend } from './legend';
import { decodeView, encodeView } from './link';
import { Client } from './loader';
import { drawHeatMap, metricHue, metricNames, metricPath } from './panels';
import { faster, SPEEDS, seek, toggle } from './playback';
import { searchBox } from './search';

const points = byId<HTMLCanvasElement>('points');
const overlay = byId<HTMLCanvasElement>('overlay');
const stage = byId('stage');
const status = byId('status');
const tip = byId('tip');
const scrub = byId<HTMLInputElement>('scrub');
const buttons = [
  'legend-toggle',
  'lasso',
  'reset',
  'heat',
  'picture',
  'record',
  'link',
  'theme',
  'help',
  'loop',
  'play',
];
for (const name of buttons) setIcon(byId(name), name);

let noticed: ReturnType<typeof setTimeout> | undefined;
if (document.createElement('canvas').getContext('webgl2') === null) {
  notice('This browser has no WebGL 2, which draws the points. Is it switched off, or the browser very old?');
  throw new Error('no WebGL 2');
}
const token = new URLSearchParams(location.search).get('token') ?? '';
let ready = false;
const app = new App(
  new Client(token),
  points,
  overlay,
  (what) => {
    if (ready) what === 'data' ? showData() : showTime();
  },
  notice,
);
const legend = new Legend(app);
const recorder = new Recorder([points, overlay]);
searchBox(app);

// ---- what is shown

function notice(text: string, wrong = true): void {
  const box = byId('notice');
  box.textContent = text;
  box.classList.toggle('wrong', wrong);
  box.hidden = false;
  clearTimeout(noticed);
  noticed = setTimeout(() => (box.hidden = true), wrong ? 8000 : 2500);
}

function showData(): void {
  const { dataset } = app;
  const title = dataset.header?.title || 'Tidemill';
  byId('title').textContent = title;
  document.title = title;
  scrub.max = String(Math.max(0, app.frames - 1));
  byId('timeline').hidden = app.frames < 2;
  const names = metricNames(dataset.frames);
  byId('plot').innerHTML = names
    .map((name, i) => `<path d="${metricPath(dataset.frames, name)}" style="stroke: ${metricHue(i)}"/>`)
    .join('');
  byId('metrics').replaceChildren(
    ...names.map((name, i) => make('li', {}, make('i', { style: `background: ${metricHue(i)}` }), name, make('b'))),
  );
  byId('chosen').replaceChildren(
    ...app.chosen.map((row) =>
      make(
        'button',
        {
          title: `${app.dataset.label(row) || app.dataset.id(row)}: no longer follow it`,
          onclick: () => app.toggleChosen(row),
        },
        make('span', { class: 'swatch', style: '' }),
        app.dataset.id(row),
      ),
    ),
  );
  legend.update();
  showTime();
}

let slowly = 0;
let countMs = 0;
function showTime(): void {
  const { playback, dataset } = app;
  const frame = dataset.frames[Math.round(playback.position)];
  scrub.value = String(playback.position);
  byId('time').textContent = frame?.time ?? '';
  scrub.setAttribute('aria-valuetext', frame?.time ?? '');
  const play = byId('play');
  if (play.dataset.icon !== String(playback.playing)) {
    play.dataset.icon = String(playback.playing);
    setIcon(play, playback.playing ? 'pause' : 'play');
  }
  byId('loop').setAttribute('aria-pressed', String(playback.loop));
  byId<HTMLSelectElement>('speed').value = String(playback.framesPerS);
  const figures = byId('metrics').querySelectorAll('b');
  metricNames(dataset.frames).forEach((name, i) => {
    const figure = frame?.metrics.get(name);
    if (figures[i] !== undefined) figures[i].textContent = figure === undefined ? '–' : figure.toFixed(3);
  });
  // Counting a million points sixty times a second would be felt.
  if (performance.now() - slowly > Math.max(250, 25 * countMs)) showCounts();
  else {
    clearTimeout(counting);
    counting = setTimeout(showCounts, 260);
  }
}

let counting: ReturnType<typeof setTimeout> | undefined;
function showCounts(): void {
  slowly = performance.now();
  const counts = app.counts();
  countMs = performance.now() - slowly;
  legend.count(counts);
  byId('chosen')
    .querySelectorAll<HTMLElement>('.swatch')
    .forEach((swatch, place) => {
      swatch.style.background = app.colourOf(app.chosen[place]);
    });
  let here = 0;
  let shown = 0;
  for (const [code, count] of counts) {
    here += count;
    if (app.scene.colours[code * 4 + 3] > 0) shown += count;
  }
  const words = shown === here ? `${number(here)} points` : `${number(shown)} of ${number(here)} points`;
  const { drawn, of } = app.drawn();
  // What is left out for speed is said.
  const part = drawn < of ? `, 1 in ${(of / Math.max(1, drawn)).toFixed(1)} drawn while it moves` : '';
  status.textContent = `${words}${part}`;
  const map = app.heatMap();
  byId('heat').hidden = map === undefined;
  if (map !== undefined && !byId('heat-map').hidden)
    drawHeatMap(byId('heat-map').querySelector('canvas') as HTMLCanvasElement, map);
}

function number(count: number): string {
  return count.toLocaleString('en');
}

// ---- time

byId('play').onclick = () => app.set(toggle(app.playback, app.frames));
byId('loop').onclick = () => app.set({ ...app.playback, loop: !app.playback.loop });
scrub.oninput = () => app.seek(Number(scrub.value));
const speed = byId<HTMLSelectElement>('speed');
speed.replaceChildren(...SPEEDS.map((value) => new Option(`${value} frames/s`, String(value))));
speed.onchange = () => app.set({ ...app.playback, framesPerS: Number(speed.value) });

// ---- pointer

let down: { x: number; y: number } | undefined;
let lassoing = false;
let hovering = 0;
function setLasso(on: boolean): void {
  lassoing = on;
  app.scene.controls.enabled = !on;
  stage.classList.toggle('lasso', on);
  byId('lasso').setAttribute('aria-pressed', String(on));
  app.lasso = [];
  app.drawOver();
}
points.addEventListener('pointerdown', (event) => {
  down = { x: event.offsetX, y: event.offsetY };
  hideTip();
  if (lassoing) {
    points.setPointerCapture(event.pointerId);
    app.lasso = [event.offsetX, event.offsetY];
  }
});
points.addEventListener('pointermove', (event) => {
  const [x, y] = [event.offsetX, event.offsetY];
  if (lassoing && app.lasso.length > 0) {
    app.lasso.push(x, y);
    app.drawOver();
  } else if (down === undefined && event.pointerType === 'mouse') {
    // Where there are very many points only when the pointer rests; where that would stop the page, only a click asks.
    clearTimeout(hovering);
    if (app.times.pickMs > 100) return;
    hovering = window.setTimeout(() => showTip(x, y, 9), app.times.pickMs > 12 ? 120 : 8);
  }
});
points.addEventListener('pointerup', (event) => {
  const still = down !== undefined && Math.hypot(event.offsetX - down.x, event.offsetY - down.y) < 5;
  down = undefined;
  if (lassoing) {
    if (app.lasso.length >= 6) nameGroup();
    else setLasso(false);
  } else if (still) {
    const row = app.pick(event.offsetX, event.offsetY, event.pointerType === 'mouse' ? 9 : 22);
    if (row !== undefined) app.toggleChosen(row);
    showTip(event.offsetX, event.offsetY, event.pointerType === 'mouse' ? 9 : 22);
  }
});
points.addEventListener('pointercancel', () => (down = undefined));
points.addEventListener('pointerleave', () => {
  clearTimeout(hovering);
  hideTip();
});

function hideTip(): void {
  tip.hidden = true;
  app.setHover(undefined);
}

function showTip(x: number, y: number, radius: number): void {
  const row = app.pick(x, y, radius);
  app.setHover(row);
  tip.hidden = row === undefined;
  if (row === undefined) return;
  const { id, label, facts } = app.details(row);
  const list = make(
    'dl',
    {},
    ...facts.flatMap(([name, value]) => [make('dt', { text: name }), make('dd', { text: value })]),
  );
  tip.replaceChildren(
    make('b', { text: id }),
    ...(label !== '' && label !== id ? [make('span', { text: label })] : []),
    list,
  );
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 16 + height > innerHeight - 90 ? y - height - 14 : y + 16}px`;
}

function nameGroup(): void {
  const rows = app.caught();
  const dialog = byId<HTMLDialogElement>('name-group');
  const name = byId<HTMLInputElement>('group-name');
  if (rows.length === 0) {
    setLasso(false);
    notice('no point is in the lasso', false);
    return;
  }
  byId('name-count').textContent = rows.length === 1 ? '1 point' : `${number(rows.length)} points`;
  name.value = '';
  dialog.returnValue = '';
  dialog.onclose = async () => {
    setLasso(false);
    const given = name.value.trim();
    if (dialog.returnValue !== 'save' || given === '') return;
    const others = app.dataset.selections.filter((selection) => selection.name !== given);
    if (await app.saveSelections([...others, { name: given, rows }])) app.colourBy(MINE);
  };
  dialog.showModal();
}

// ---- tools

function setLegend(shown: boolean): void {
  byId('legend').hidden = !shown;
  byId('legend-toggle').setAttribute('aria-pressed', String(shown));
}
function setTheme(dark: boolean): void {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  const style = getComputedStyle(document.documentElement);
  app.setTheme({ ink: style.getPropertyValue('--ink').trim(), paper: style.getPropertyValue('--paper').trim() });
}
function fileName(): string {
  const time = app.dataset.frames[Math.round(app.playback.position)]?.time ?? '';
  return `${document.title} ${time}`.trim().replace(/[^\p{L}\p{N}.-]+/gu, '-');
}
async function copyLink(): Promise<void> {
  history.replaceState(null, '', `#${encodeView(app.view())}`);
  try {
    await navigator.clipboard.writeText(location.href);
    notice('A link to this view is in the clipboard. It has the token: who has it can look.', false);
  } catch {
    notice('The link is in the address bar.', false);
  }
}
function record(): void {
  if (recorder.recording) recorder.stop();
  else if (recorder.start(fileName())) notice('Recording; press again to save.', false);
  else notice('This browser cannot record videos.');
  byId('record').setAttribute('aria-pressed', String(recorder.recording));
}
const actions: Record<string, () => void> = {
  'legend-toggle': () => setLegend(Boolean(byId('legend').hidden)),
  lasso: () => setLasso(!lassoing),
  reset: () => app.scene.resetCamera(),
  heat: () => {
    byId('heat-map').hidden = !byId('heat-map').hidden;
    byId('heat').setAttribute('aria-pressed', String(!byId('heat-map').hidden));
    showCounts();
  },
  picture: () => savePicture([points, overlay], fileName()),
  record,
  link: () => void copyLink(),
  theme: () => setTheme(document.documentElement.dataset.theme !== 'dark'),
  help: () => byId<HTMLDialogElement>('keys').showModal(),
};
for (const [name, action] of Object.entries(actions)) byId(name).onclick = action;

// ---- keys

const step = (by: number) => app.seek(Math.round(app.playback.position) + by);
const turn = (around: number, over: number) => app.scene.turn(around, over);
const KEYS: readonly { keys: readonly string[]; shown: string; does: string; action: () => void }[] = [
  { keys: [' '], shown: 'space', does: 'play or pause', action: () => byId('play').click() },
  { keys: [','], shown: ',', does: 'a frame back', action: () => step(-1) },
  { keys: ['.'], shown: '.', does: 'a frame on', action: () => step(1) },
  { keys: ['Home'], shown: 'Home', does: 'first frame', action: () => app.set(seek(app.playback, 0, app.frames)) },
  {
    keys: ['End'],
    shown: 'End',
    does: 'last frame',
    action: () => app.set(seek(app.playback, app.frames, app.frames)),
  },
  { keys: ['['], shown: '[', does: 'slower', action: () => app.set(faster(app.playback, -1)) },
  { keys: [']'], shown: ']', does: 'faster', action: () => app.set(faster(app.playback, 1)) },
  { keys: ['r'], shown: 'R', does: 'begin anew at the end', action: () => byId('loop').click() },
  { keys: ['ArrowLeft'], shown: '← → ↑ ↓', does: 'turn', action: () => turn(-1, 0) },
  { keys: ['ArrowRight'], shown: '', does: '', action: () => turn(1, 0) },
  { keys: ['ArrowUp'], shown: '', does: '', action: () => turn(0, -1) },
  { keys: ['ArrowDown'], shown: '', does: '', action: () => turn(0, 1) },
  { keys: ['+', '='], shown: '+ −', does: 'nearer, farther', action: () => app.scene.zoom(0.85) },
  { keys: ['-'], shown: '', does: '', action: () => app.scene.zoom(1 / 0.85) },
  { keys: ['0'], shown: '0', does: 'reset the view', action: actions.reset },
  { keys: ['/'], shown: '/', does: 'find a point', action: () => byId('query').focus() },
  {
    keys: ['Escape'],
    shown: 'Esc',
    does: 'let go of chosen points',
    action: () => (lassoing ? setLasso(false) : app.choose([])),
  },
  { keys: ['l'], shown: 'L', does: 'legend', action: actions['legend-toggle'] },
  { keys: ['g'], shown: 'G', does: 'lasso', action: actions.lasso },
  { keys: ['h'], shown: 'H', does: 'heat map', action: actions.heat },
  { keys: ['p'], shown: 'P', does: 'save a picture', action: actions.picture },
  { keys: ['v'], shown: 'V', does: 'record a video', action: actions.record },
  { keys: ['c'], shown: 'C', does: 'copy a link', action: actions.link },
  { keys: ['t'], shown: 'T', does: 'light or dark', action: actions.theme },
  { keys: ['?'], shown: '?', does: 'this list', action: actions.help },
];
byId('key-list').replaceChildren(
  ...KEYS.filter(({ shown }) => shown !== '').flatMap(({ shown, does }) => [
    make('dt', {}, make('kbd', { text: shown })),
    make('dd', { text: does }),
  ]),
);
addEventListener('keydown', (event) => {
  const at = event.target as HTMLElement;
  // Whoever types into a field, or moves a slider, means that.
  if (at.matches('input:not([type="range"]), select, dialog *') || event.ctrlKey || event.metaKey || event.altKey)
    return;
  if (at.matches('input[type="range"]') && event.key.startsWith('Arrow')) return;
  if (at.matches('button') && event.key === ' ') return;
  const found = KEYS.find(({ keys }) => keys.includes(event.key.length === 1 ? event.key.toLowerCase() : event.key));
  if (found === undefined) return;
  event.preventDefault();
  found.action();
});

// ---- begin

new ResizeObserver(() => app.resize(stage.clientWidth, stage.clientHeight)).observe(stage);
setTheme(matchMedia('(prefers-color-scheme: dark)').matches);
setLegend(innerWidth > 640);
app.resize(stage.clientWidth, stage.clientHeight);
app.scene.resetCamera();
void app.start().then((started) => {
  if (!started) return;
  ready = true;
  const glyphs = app.dataset.header?.glyphs ?? new Map();
  app.setView({ chosen: [], ...decodeView(location.hash) });
  if (app.chosen.length === 0)
    app.choose([...glyphs.keys()].map((id) => app.dataset.rowOf(id)).filter((row) => row !== undefined));
  showData();
});
addEventListener('hashchange', () => app.setView(decodeView(location.hash)));

// For tests and for those who measure: docs/viewer.md does not promise it.
Object.assign(window, { tidemill: app });
