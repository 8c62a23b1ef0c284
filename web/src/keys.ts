// What keys do, and the list that says so.

import type { App } from './app';
import { byId, make } from './dom';
import { faster, seek } from './playback';
import type { Pointer } from './pointer';

/** `shown` is empty for keys that are listed with another. */
type Key = { keys: readonly string[]; shown: string; does: string; action: () => void };

/** `actions` are those of the buttons, by their ids. */
export function listenToKeys(app: App, pointer: Pointer, actions: Readonly<Record<string, () => void>>): void {
  const step = (by: number) => app.seek(Math.round(app.playback.position) + by);
  const turn = (around: number, over: number) => app.scene.turn(around, over);
  const all: readonly Key[] = [
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
      action: () => (pointer.lassoing ? pointer.setLasso(false) : app.chosen.choose([])),
    },
    { keys: ['l'], shown: 'L', does: 'legend', action: actions['legend-toggle'] },
    { keys: ['g'], shown: 'G', does: 'lasso', action: actions.lasso },
    {
      keys: ['Enter'],
      shown: 'G, Enter',
      does: 'make a group of the chosen points',
      action: () => (pointer.lassoing ? pointer.groupChosen() : undefined),
    },
    { keys: ['h'], shown: 'H', does: 'heat map', action: actions.heat },
    { keys: ['e'], shown: 'E', does: 'lines between points', action: actions.edges },
    { keys: ['p'], shown: 'P', does: 'save a picture', action: actions.picture },
    { keys: ['v'], shown: 'V', does: 'record a video', action: actions.record },
    { keys: ['i'], shown: 'I', does: 'record an animated GIF', action: actions.gif },
    { keys: ['c'], shown: 'C', does: 'copy a link', action: actions.link },
    { keys: ['a'], shown: 'A', does: 'versions and comments of a library', action: actions['about-toggle'] },
    { keys: ['t'], shown: 'T', does: 'light or dark', action: actions.theme },
    { keys: ['?'], shown: '?', does: 'this list', action: actions.help },
  ];
  byId('key-list').replaceChildren(
    ...all
      .filter(({ shown }) => shown !== '')
      .flatMap(({ shown, does }) => [make('dt', {}, make('kbd', { text: shown })), make('dd', { text: does })]),
  );
  addEventListener('keydown', (event) => {
    const at = event.target as HTMLElement;
    // Whoever types into a field, or moves a slider, means that.
    if (
      at.matches('input:not([type="range"]), select, textarea, dialog *') ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey
    )
      return;
    if (at.matches('input[type="range"]') && event.key.startsWith('Arrow')) return;
    if (at.matches('button, a') && (event.key === ' ' || event.key === 'Enter')) return;
    const found = all.find(({ keys }) => keys.includes(event.key.length === 1 ? event.key.toLowerCase() : event.key));
    if (found === undefined) return;
    event.preventDefault();
    found.action();
  });
}
