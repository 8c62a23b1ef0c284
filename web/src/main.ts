// The page: connects its elements with the app.

import './base.css';
import './style.css';
import { App } from './app';
import { MINE } from './dataset';
import { byId, download, make, notice, setIcon, startTheme, toggleTheme } from './dom';
import { editCategory, editPoint } from './edit';
import { Embedded, EmbeddedVersions, isEmbedded } from './embedded';
import { Recorder, savePicture } from './export';
import { GifRecorder, SECONDS_MAX } from './gif';
import { showHeatMap } from './heat';
import { listenToKeys } from './keys';
import { Legend } from './legend';
import { AboutPanel } from './library/about';
import { LibraryClient } from './library/client';
import { decodeView, encodeView } from './link';
import { Client } from './loader';
import { Metrics } from './metrics';
import { SPEEDS, toggle } from './playback';
import { Pointer } from './pointer';
import { searchBox } from './search';
import { breakable, count, drawnText } from './texts';
import { parseSelections } from './wire';

const points = byId<HTMLCanvasElement>('points');
const overlay = byId<HTMLCanvasElement>('overlay');
const stage = byId('stage');
const status = byId('status');
const scrub = byId<HTMLInputElement>('scrub');
const buttons = [
  'about-toggle',
  'legend-toggle',
  'lasso',
  'reset',
  'edges',
  'heat',
  'picture',
  'record',
  'gif',
  'link',
  'theme',
  'help',
  'loop',
  'play',
];
for (const name of buttons) setIcon(byId(name), name);

if (document.createElement('canvas').getContext('webgl2') === null) {
  blank('This browser has no WebGL 2, which draws the points. It is switched off, or the browser is too old.', false);
  throw new Error('no WebGL 2');
}
const token = new URLSearchParams(location.search).get('token') ?? '';
// A plot of a library has a page of its own; a folder of frames is all there is.
const plot = /^\/plots\/([0-9a-f]{16})$/.exec(location.pathname)?.[1];
let ready = false;
const embedded = isEmbedded();
const versioned = embedded && EmbeddedVersions.there();
const app = new App(
  embedded ? new Embedded() : new Client(plot === undefined ? '/api/' : `/api/plots/${plot}/frames/`, token),
  plot !== undefined || versioned,
  points,
  overlay,
  (what) => {
    if (ready) what === 'data' ? showData() : showTime();
  },
  notice,
  () => {
    // What the page has is of points that are no more: it begins again, with the same view, and then says why.
    history.replaceState({ anew: true }, '', `#${encodeView(app.view())}`);
    location.reload();
  },
);
const about = aboutPanel();
const legend = new Legend(app);
const recorder = new Recorder([points, overlay]);
const gif = new GifRecorder([points, overlay]);
const metrics = new Metrics(app.dataset.frames);
searchBox(app);

/** What there is to say of a plot of a library, on its page or in a file that has it. */
function aboutPanel(): AboutPanel | undefined {
  if (versioned) return new AboutPanel(app, new EmbeddedVersions(), undefined, '', notice);
  if (plot === undefined) return undefined;
  const client = new LibraryClient(token);
  return new AboutPanel(app, client, client, plot, notice);
}

// ---- what is shown

/** Says in the middle of the page why nothing is there. */
function blank(text: string, again: boolean): void {
  byId('blank-text').textContent = text;
  byId('blank-again').hidden = !again;
  byId('blank').hidden = text === '';
  // Else it stays until the points are counted anew.
  if (text !== '') status.textContent = '';
}
byId('blank-again').onclick = () => location.reload();

function showData(): void {
  const { dataset } = app;
  const title = about?.title || dataset.header?.title || 'Tidemill';
  byId('title').title = title;
  byId('title').replaceChildren(...breakable(title).flatMap((part) => [part, make('wbr')]));
  blank(app.frames > 0 ? '' : 'There is no frame yet. As soon as one is written, it appears here.', false);
  document.title = title;
  byId('trouble').textContent = app.trouble;
  scrub.max = String(Math.max(0, app.frames - 1));
  metrics.update();
  if (byId('timeline').hidden !== app.frames < 2) {
    byId('timeline').hidden = app.frames < 2;
    layOut();
  }
  byId('chosen').replaceChildren(...app.chosen.rows.map(chip));
  byId('edges').hidden = dataset.frames.every((frame) => frame.edges === undefined);
  byId('edges').setAttribute('aria-pressed', String(app.edges.shown));
  legend.update();
  // Of another grouping it has another height.
  if (isUpright()) layOut();
  showTime();
}

/** What stands for a chosen point. */
function chip(row: number): HTMLElement {
  const { id, label } = app.details(row);
  const name = app.colours.edits.labels.get(id) ?? id;
  const swatch = make('span', { class: 'swatch', style: '' });
  const title = `${label || id}: no longer follow it`;
  const follow = make(
    'button',
    { class: 'follow', title, onclick: () => app.chosen.toggle(row) },
    swatch,
    make('span', { class: 'name', text: name }),
  );
  if (about?.writable !== true) return make('li', {}, follow);
  const edit = make('button', { title: `Edit ${name}`, onclick: () => void editPoint(app, row) });
  setIcon(edit, 'edit');
  return make('li', {}, follow, edit);
}

let slowly = 0;
let countMs = 0;
function showTime(): void {
  const { playback, dataset } = app;
  const frame = dataset.frames[Math.round(playback.position)];
  scrub.value = String(playback.position);
  byId('time').textContent = byId('time').title = frame?.time ?? '';
  scrub.setAttribute('aria-valuetext', frame?.time ?? '');
  const play = byId('play');
  if (play.dataset.icon !== String(playback.playing)) {
    play.dataset.icon = String(playback.playing);
    setIcon(play, playback.playing ? 'pause' : 'play');
  }
  byId('loop').setAttribute('aria-pressed', String(playback.loop));
  byId<HTMLSelectElement>('speed').value = String(playback.framesPerS);
  metrics.show(frame);
  pointer.follow();
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
  const counts = app.seen.counts();
  countMs = performance.now() - slowly;
  legend.count(counts);
  byId('chosen')
    .querySelectorAll<HTMLElement>('.swatch')
    .forEach((swatch, place) => {
      swatch.style.background = app.seen.colourOf(app.chosen.rows[place]);
    });
  if (app.frames > 0) status.textContent = countText(counts);
  const frame = app.dataset.frames[Math.round(app.playback.position)];
  byId('heat').hidden = frame?.heatMap !== true;
  const map = byId('heat-map').hidden ? undefined : app.heatMap();
  if (map !== undefined) showHeatMap(map, frame);
}

/** How many points there are, how many of them are not hidden, and what of them is drawn: what is left out for speed is said. */
function countText(counts: ReadonlyMap<number, number> | undefined): string {
  const { drawn, of } = app.drawn();
  if (counts === undefined) {
    const here = app.dataset.frames[Math.round(app.playback.position)]?.count ?? 0;
    return drawnText(count(here, 'point'), drawn, of, app.playback.playing ? 'while it moves' : 'until all have come');
  }
  let here = 0;
  let shown = 0;
  for (const [code, points] of counts) {
    here += points;
    if (app.scene.colours[code * 4 + 3] > 0) shown += points;
  }
  const words = shown === here ? count(here, 'point') : `${shown.toLocaleString('en')} of ${count(here, 'point')}`;
  return drawn < of ? drawnText(words, drawn, of, 'while it moves') : words;
}

// ---- time

byId('play').onclick = () => app.set(toggle(app.playback, app.frames));
byId('loop').onclick = () => app.set({ ...app.playback, loop: !app.playback.loop });
scrub.oninput = () => app.seek(Number(scrub.value));
const speed = byId<HTMLSelectElement>('speed');
speed.replaceChildren(...SPEEDS.map((value) => new Option(`${value} frames/s`, String(value))));
speed.onchange = () => app.set({ ...app.playback, framesPerS: Number(speed.value) });

// ---- pointer

const pointer = new Pointer(app, points, notice);

// ---- tools

/** Whether panels lie over the points, as on a phone. */
function isNarrow(): boolean {
  return innerWidth <= 640;
}
/** Whether it is a tablet held upright, where the room below a panel is most of what there is. */
function isUpright(): boolean {
  return innerHeight > innerWidth && !isNarrow();
}
/** Opens one of the panels, which lie in the same place; `undefined` none. */
function setPanel(name: 'legend' | 'about' | undefined): void {
  // On a phone it would lie over the panel.
  pointer.hideTip();
  for (const panel of ['legend', 'about']) {
    byId(panel).hidden = panel !== name;
    byId(`${panel}-toggle`).setAttribute('aria-pressed', String(panel === name));
  }
  layOut();
}
/** The canvas is the whole page; the points keep to the part of it that panels leave free. */
function layOut(): void {
  const narrow = isNarrow();
  const [search, tools] = [byId('search'), byId('tools')].map((element) => element.getBoundingClientRect());
  const side = [byId('legend'), byId('about')].find((panel) => !panel.hidden);
  // There is room for one of them; a wide window may have had both, and be narrow now.
  if (narrow && side !== undefined && !byId('heat-map').hidden) setHeatMap(false);
  const timeline = byId('timeline').hidden ? 0 : byId('timeline').offsetHeight;
  // Panels stand on it.
  document.documentElement.style.setProperty('--timeline', `${timeline}px`);
  const header = document.querySelector('header') as HTMLElement;
  const corner = side !== undefined && isUpright() ? side.getBoundingClientRect() : tools;
  app.resize(stage.clientWidth, stage.clientHeight, {
    top: narrow ? header.offsetTop + header.offsetHeight : 24,
    right: narrow || side === undefined || isUpright() ? 24 : side.offsetWidth + 24,
    bottom: timeline + 42,
    left: narrow || innerWidth < 1000 ? 24 : header.offsetLeft + 60,
    ...(narrow
      ? {}
      : {
          corners: {
            left: { width: search.right, height: search.bottom },
            right: { width: innerWidth - Math.min(tools.left, corner.left), height: corner.bottom },
          },
        }),
  });
}
function togglePanel(name: 'legend' | 'about'): void {
  setPanel(byId(name).hidden ? name : undefined);
}
function setHeatMap(shown: boolean): void {
  byId('heat-map').hidden = !shown;
  byId('heat').setAttribute('aria-pressed', String(shown));
  app.showHeatMap(shown);
  if (shown && isNarrow()) setPanel(undefined);
  showCounts();
}
startTheme(() => {
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, paper] = ['--ink', '--soft', '--paper'].map((name) => style.getPropertyValue(name).trim());
  app.setTheme({ ink, soft, paper });
});
function fileName(): string {
  const time = app.dataset.frames[Math.round(app.playback.position)]?.time ?? '';
  return `${document.title} ${time}`.trim().replace(/[^\p{L}\p{N}.-]+/gu, '-');
}
/** So many letters of a URL any program takes. */
const LINK_LONG = 8000;
async function copyLink(): Promise<void> {
  await app.known.load(app.chosen.rows);
  history.replaceState(null, '', `#${encodeView(app.view())}`);
  const { length } = location.href;
  const long = length > LINK_LONG ? ` It has ${length.toLocaleString('en')} letters; some programs cut that off.` : '';
  try {
    await navigator.clipboard.writeText(location.href);
    const can = about?.writable ? 'change the whole library; links that only show are made beside the plot' : 'look';
    const token = embedded ? '' : ` It has the token: who has it can ${can}.`;
    notice(`A link to this view is in the clipboard.${token}${long}`, long !== '');
  } catch {
    notice(`The link is in the address bar.${long}`, long !== '');
  }
}
function record(): void {
  if (recorder.recording) recorder.stop();
  else if (recorder.start(fileName())) notice('Recording; press again to save.', false);
  else notice('This browser cannot record videos.');
  byId('record').setAttribute('aria-pressed', String(recorder.recording));
}
function recordGif(): void {
  if (gif.recording) gif.stop();
  else {
    const name = fileName();
    gif.start((file) => download(file, `${name}.gif`), notice);
    notice(`Recording; press again to save. It ends after ${SECONDS_MAX} seconds.`, false);
  }
  showRecording();
}
function showRecording(): void {
  byId('gif').setAttribute('aria-pressed', String(gif.recording));
  if (gif.recording) setTimeout(showRecording, 500);
}
const actions: Record<string, () => void> = {
  'about-toggle': () => (about === undefined ? undefined : togglePanel('about')),
  'legend-toggle': () => togglePanel('legend'),
  lasso: () => pointer.setLasso(!pointer.lassoing),
  reset: () => app.scene.resetCamera(),
  heat: () => setHeatMap(byId('heat-map').hidden !== false),
  picture: () => savePicture([points, overlay], fileName()),
  record,
  gif: recordGif,
  edges: () => {
    app.edges.shown = !app.edges.shown;
    app.redraw();
    showData();
  },
  link: () => void copyLink(),
  theme: toggleTheme,
  help: () => {
    byId<HTMLDialogElement>('keys').showModal();
    // The first that could be pressed is Close, at the end of a list that may have to be scrolled.
    byId('keys-title').focus();
  },
};
for (const [name, action] of Object.entries(actions)) byId(name).onclick = action;

// ---- groups of a page that is a file, which has nowhere else to keep them

byId('save-groups').onclick = () => {
  const text = JSON.stringify(app.dataset.selections.map(({ name, rows }) => ({ name, rows })));
  download(new Blob([text], { type: 'application/json' }), 'selections.json');
};
const groups = byId<HTMLInputElement>('load-groups');
groups.onchange = async () => {
  const file = groups.files?.[0];
  if (file === undefined) return;
  groups.value = '';
  const read = parseSelections(await file.text());
  if (!read.ok) notice(`${file.name}: ${read.reason}`);
  else {
    for (const { name, rows } of read.value) await app.groups.save(name, rows);
    app.colourBy(MINE);
  }
};

listenToKeys(app, pointer, actions);

// ---- begin

// What stands below it keeps clear of it, also where chosen points make it higher.
new ResizeObserver(() => {
  const header = document.querySelector('header') as HTMLElement;
  document.documentElement.style.setProperty('--header', `${header.offsetTop + header.offsetHeight}px`);
}).observe(document.querySelector('header') as HTMLElement);
const sizes = new ResizeObserver(layOut);
for (const element of [stage, byId('timeline'), byId('title')]) sizes.observe(element);
// On a phone, also one that lies on its side, it would leave no room for the points.
setPanel(!isNarrow() && innerHeight > 480 ? 'legend' : undefined);
async function begin(): Promise<void> {
  const started = await app.start();
  if (!started.ok) {
    blank(started.reason, true);
    return;
  }
  ready = true;
  // The timeline has its place before a link's camera is put where it shows the same on this screen.
  showData();
  if ((history.state as { anew?: boolean } | null)?.anew) {
    history.replaceState(null, '');
    notice('The frames were rewritten; these are the new ones.', false);
  }
  const view = decodeView(location.hash);
  const wanted = new URLSearchParams(location.search).get('version');
  byId('groups-file').hidden = !embedded;
  if (about === undefined) {
    await app.chooseMarked();
  } else {
    byId('about-toggle').hidden = false;
    if (!(await about.start(wanted === null ? undefined : Number(wanted)))) return;
    const back = byId<HTMLAnchorElement>('back');
    back.hidden = !about.writable;
    back.href = `/?${new URLSearchParams({ token })}`;
    if (about.writable) legend.edit = (category) => void editCategory(app, category);
  }
  // What a link says goes before what a version does.
  await app.setView(view);
  about?.unchanged();
  showData();
  // Points that are followed from the start stand in the header, too.
  layOut();
  // For tests and for those who measure: docs/viewer.md does not promise it.
  Object.assign(window, { tidemill: app });
}
void begin();
addEventListener('hashchange', () => void app.setView(decodeView(location.hash)));
