// Dialogs that change a category's name and colour, or a point's name and glyph.

import type { App } from './app';
import type { Category } from './colours';
import { byId } from './dom';
import { categoryKey } from './edits';
import { hex } from './palettes';

/** Changes a category; an empty name is that of the data. */
export function editCategory(app: App, category: Category): void {
  if (app.colouring.kind !== 'grouping') return;
  const key = categoryKey(app.colouring.name, category.name);
  const dialog = byId<HTMLDialogElement>('edit-category');
  const [name, colour] = [byId<HTMLInputElement>('category-name'), byId<HTMLInputElement>('category-colour')];
  name.value = app.colours.edits.names.get(key) ?? '';
  name.placeholder = category.name;
  const before = hex(category.colour);
  colour.value = before;
  opened(dialog, (how) => {
    app.edit((edits) => {
      set(edits.names, key, how === 'save' ? name.value.trim() : '');
      if (how === 'reset') edits.colours.delete(key);
      else if (colour.value !== before) edits.colours.set(key, colour.value);
    });
  });
}

/** Changes how a chosen point is called and drawn. */
export async function editPoint(app: App, row: number): Promise<void> {
  if (!(await app.known.load([row]))) return;
  const id = app.id(row);
  const dialog = byId<HTMLDialogElement>('edit-point');
  const [name, glyph] = [byId<HTMLInputElement>('point-name'), byId<HTMLSelectElement>('point-glyph')];
  name.value = app.colours.edits.labels.get(id) ?? '';
  name.placeholder = id;
  glyph.value = app.colours.edits.glyphs.get(id) ?? '';
  opened(dialog, (how) => {
    app.edit((edits) => {
      set(edits.labels, id, how === 'save' ? name.value.trim() : '');
      set(edits.glyphs, id, how === 'save' ? glyph.value : '');
    });
  });
}

function set(map: Map<string, string>, key: string, value: string): void {
  if (value === '') map.delete(key);
  else map.set(key, value);
}

/** Opens a dialog whose buttons are called `save`, `reset` and `cancel`. */
function opened(dialog: HTMLDialogElement, done: (how: 'save' | 'reset') => void): void {
  dialog.returnValue = '';
  dialog.onclose = () => {
    if (dialog.returnValue === 'save' || dialog.returnValue === 'reset') done(dialog.returnValue);
  };
  dialog.showModal();
}
