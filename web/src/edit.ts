// What a category, or a point, is called and how it is drawn: asked for, and changed.

import type { App } from './app';
import type { Category } from './colours';
import { ask } from './dialog';
import { categoryKey } from './edits';
import { hex } from './palettes';

const CHOICES = [
  { name: 'save', title: 'Change', look: 'primary' },
  { name: 'reset', title: 'As in the data' },
] as const;
const NAME_MAX = 1000;
const GLYPHS = ['circle', 'square', 'diamond', 'triangle', 'star', 'cross'] as const;

/** Changes a category; an empty name is that of the data. */
export async function editCategory(app: App, category: Category): Promise<void> {
  if (app.colouring.kind !== 'grouping') return;
  const key = categoryKey(app.colouring.name, category.name);
  const { names } = app.colours.edits;
  const before = hex(category.colour);
  const answer = await ask(
    'edit-category',
    'Group',
    [
      { id: 'category-name', label: 'Name', value: names.get(key) ?? '', placeholder: category.name, most: NAME_MAX },
      { id: 'category-colour', label: 'Colour', value: before, kind: 'colour' },
    ],
    CHOICES,
  );
  if (answer === undefined) return;
  const keep = answer.choice === 'save';
  const colour = answer.value('category-colour');
  app.edit((edits) => {
    set(edits.names, key, keep ? answer.value('category-name').trim() : '');
    if (!keep) edits.colours.delete(key);
    else if (colour !== before) edits.colours.set(key, colour);
  });
}

/** Changes how a chosen point is called and drawn. */
export async function editPoint(app: App, row: number): Promise<void> {
  if (!(await app.known.load([row]))) return;
  const id = app.id(row);
  const { labels, glyphs } = app.colours.edits;
  const options = [['', 'as in the data'] as const, ...GLYPHS.map((glyph) => [glyph, glyph] as const)];
  const answer = await ask(
    'edit-point',
    'Point',
    [
      { id: 'point-name', label: 'Name', value: labels.get(id) ?? '', placeholder: id, most: NAME_MAX },
      { id: 'point-glyph', label: 'Glyph', value: glyphs.get(id) ?? '', options },
    ],
    CHOICES,
  );
  if (answer === undefined) return;
  const keep = answer.choice === 'save';
  app.edit((edits) => {
    set(edits.labels, id, keep ? answer.value('point-name').trim() : '');
    set(edits.glyphs, id, keep ? answer.value('point-glyph') : '');
  });
}

function set(map: Map<string, string>, key: string, value: string): void {
  if (value === '') map.delete(key);
  else map.set(key, value);
}
