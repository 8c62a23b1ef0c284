// The field that finds points by name.

import type { App } from './app';
import { byId, make } from './dom';
import type { Point } from './wire';

const FOUND_MAX = 12;
/** How long after the last key a search begins. */
const TYPING_MS = 80;

export function searchBox(app: App): void {
  const query = byId<HTMLInputElement>('query');
  const found = byId('found');
  let points: readonly Point[] = [];
  let at = 0;
  /** What `points` were found for; what is asked for meanwhile; and what waits to be. */
  let shown = '';
  let asked = 0;
  let typing: ReturnType<typeof setTimeout> | undefined;
  const show = () => {
    const nothing = points.length === 0 && shown.trim() !== '';
    found.hidden = points.length === 0 && !nothing;
    query.setAttribute('aria-expanded', String(!found.hidden));
    if (points.length > 0) query.setAttribute('aria-activedescendant', `found-${at}`);
    else query.removeAttribute('aria-activedescendant');
    found.replaceChildren(
      ...points.map(({ row, id, label }, place) => {
        const item = make(
          'div',
          { class: place === at ? 'at' : '', onclick: () => take(row) },
          make('span', { text: id }),
          make('small', { text: label === id ? '' : label }),
        );
        item.id = `found-${place}`;
        item.role = 'option';
        item.ariaSelected = String(place === at);
        return item;
      }),
      ...(nothing ? [make('div', { class: 'nothing', text: 'No point has that in its name.' })] : []),
    );
  };
  const look = async () => {
    clearTimeout(typing);
    const [mine, text] = [++asked, query.value];
    const got = await app.known.find(text, FOUND_MAX);
    // Answers to what was typed before are late.
    if (mine !== asked) return;
    // What somebody has gone down to meanwhile stays the one, if it is still among them.
    const pointed = at > 0 ? points[at]?.row : undefined;
    at = Math.max(
      0,
      got.findIndex(({ row }) => row === pointed),
    );
    [points, shown] = [got, text];
    show();
  };
  const close = () => {
    clearTimeout(typing);
    asked++;
    [points, shown] = [[], ''];
    show();
  };
  const take = (row: number) => {
    if (!app.chosen.rows.includes(row)) app.chosen.toggle(row);
    query.value = '';
    close();
    // Keys mean the view again.
    query.blur();
  };
  const enter = async () => {
    if (shown !== query.value) await look();
    if (points[at] !== undefined) take(points[at].row);
  };
  query.oninput = () => {
    clearTimeout(typing);
    typing = setTimeout(look, TYPING_MS);
  };
  query.onkeydown = (event) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      at = (at + (event.key === 'ArrowDown' ? 1 : -1) + points.length) % Math.max(1, points.length);
      show();
      event.preventDefault();
    } else if (event.key === 'Enter') void enter();
    else if (event.key === 'Escape') {
      query.value = '';
      close();
      query.blur();
    }
  };
  // A click on what was found comes after the field has lost the focus.
  query.onblur = () => setTimeout(close, 200);
}
