// The field that finds points by name.

import type { App } from './app';
import { byId, make } from './dom';

const FOUND_MAX = 12;

export function searchBox(app: App): void {
  const query = byId<HTMLInputElement>('query');
  const found = byId('found');
  let rows: number[] = [];
  let at = 0;
  const show = () => {
    found.hidden = rows.length === 0;
    query.setAttribute('aria-expanded', String(rows.length > 0));
    if (rows.length > 0) query.setAttribute('aria-activedescendant', `found-${at}`);
    else query.removeAttribute('aria-activedescendant');
    found.replaceChildren(
      ...rows.map((row, place) => {
        const item = make(
          'div',
          { class: place === at ? 'at' : '', onclick: () => take(row) },
          make('span', { text: app.dataset.id(row) }),
          make('small', { text: app.dataset.label(row) }),
        );
        item.id = `found-${place}`;
        item.role = 'option';
        item.ariaSelected = String(place === at);
        return item;
      }),
    );
  };
  const close = () => {
    rows = [];
    show();
  };
  const take = (row: number) => {
    if (!app.chosen.includes(row)) app.toggleChosen(row);
    query.value = '';
    close();
    // Keys mean the view again.
    query.blur();
  };
  query.oninput = () => {
    rows = app.dataset.search(query.value, FOUND_MAX);
    at = 0;
    show();
  };
  query.onkeydown = (event) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      at = (at + (event.key === 'ArrowDown' ? 1 : -1) + rows.length) % Math.max(1, rows.length);
      show();
      event.preventDefault();
    } else if (event.key === 'Enter' && rows[at] !== undefined) take(rows[at]);
    else if (event.key === 'Escape') {
      query.value = '';
      close();
      query.blur();
    }
  };
  // A click on what was found comes after the field has lost the focus.
  query.onblur = () => setTimeout(close, 200);
}
