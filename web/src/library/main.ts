// The page of a library: its plots, found by word, tag and collection; uploads; descriptions.

import '../base.css';
import './library.css';
import { ask } from '../dialog';
import { byId, make, notice, setIcon, startTheme, toggleTheme } from '../dom';
import { count } from '../texts';
import { LibraryClient } from './client';
import { day, size } from './texts';
import { UploadDialog } from './upload';
import type { Plot, Summary } from './wire';

/** How long after the last key a search begins. */
const TYPING_MS = 200;

const token = new URLSearchParams(location.search).get('token') ?? '';
const client = new LibraryClient(token);
const query = byId<HTMLInputElement>('query');
let plots: Plot[] = [];
/** Answers of searches that are no longer wanted are left aside. */
let asked = 0;

// ---- the list

async function search(more = false): Promise<void> {
  const mine = ++asked;
  const got = await client.plots(query.value, more ? plots.length : 0);
  if (mine !== asked) return;
  if (!got.ok) {
    notice(got.reason);
    return;
  }
  plots = more ? [...plots, ...got.value.plots] : got.value.plots;
  byId('plots').replaceChildren(...plots.map(card));
  byId('more').hidden = plots.length >= got.value.total;
  const empty = got.value.total === 0 && query.value.trim() === '';
  byId('status').classList.toggle('empty', empty);
  byId('status').textContent = empty
    ? 'No plots yet. Upload a file of points, or drop one anywhere on this page.'
    : got.value.total > 0
      ? count(got.value.total, 'plot')
      : 'Nothing is found.';
}

function card(plot: Plot): HTMLElement {
  const open = make('a', { class: 'title', title: plot.title, text: plot.title });
  open.href = `/plots/${plot.id}?${new URLSearchParams({ token })}`;
  const edit = make('button', { title: `Describe or remove ${plot.title}`, onclick: () => void describe(plot) });
  setIcon(edit, 'edit');
  const facts = [
    count(plot.points, 'point'),
    count(plot.frames, 'frame'),
    ...(plot.versions > 0 ? [count(plot.versions, 'version')] : []),
    ...(plot.comments > 0 ? [count(plot.comments, 'comment')] : []),
    size(plot.bytes),
    day(plot.changed),
  ];
  return make(
    'li',
    {},
    make('div', { class: 'head' }, open, edit),
    ...(plot.description === '' ? [] : [make('p', { class: 'text', text: plot.description })]),
    make('p', { class: 'facts', text: facts.join(' · ') }),
    make(
      'ul',
      { class: 'tags' },
      ...(plot.collection === '' ? [] : [filter('in', plot.collection)]),
      ...plot.tags.map((tag) => filter('tag', tag)),
    ),
  );
}

/** A word of the search that a click puts in or takes out. */
function filter(kind: 'in' | 'tag', name: string, plots?: number): HTMLElement {
  const word = `${kind}:${/[\s"]/.test(name) ? `"${name.replaceAll('"', '')}"` : name}`;
  const words: string[] = query.value.match(/(?:tag|in):"[^"]*"|\S+/g) ?? [];
  const button = make('button', {
    class: kind,
    text: plots === undefined ? name : `${name} ${plots}`,
    title: kind === 'in' ? `Plots in the collection ${name}` : `Plots with the tag ${name}`,
    onclick: () => {
      query.value = (words.includes(word) ? words.filter((other) => other !== word) : [...words, word]).join(' ');
      void refresh();
    },
  });
  button.type = 'button';
  button.setAttribute('aria-pressed', String(words.includes(word)));
  return make('li', {}, button);
}

let summary: Summary | undefined;
async function refresh(): Promise<void> {
  const got = await client.summary();
  if (!got.ok) {
    notice(got.reason);
    return;
  }
  summary = got.value;
  const { tags, collections } = summary;
  byId('collections').replaceChildren(...[...collections].map(([name, plots]) => filter('in', name, plots)));
  byId('tags').replaceChildren(...[...tags].map(([name, plots]) => filter('tag', name, plots)));
  byId('collection-names').replaceChildren(...[...collections.keys()].map((name) => new Option(name)));
  upload.limits(summary);
  await search();
}

let typing: ReturnType<typeof setTimeout> | undefined;
query.oninput = () => {
  clearTimeout(typing);
  typing = setTimeout(() => void refresh(), TYPING_MS);
};
byId('more').onclick = () => void search(true);

// ---- describing and removing

async function describe(plot: Plot): Promise<void> {
  const answer = await ask(
    'edit-dialog',
    'Describe the plot',
    [
      { id: 'edit-title', label: 'Title', value: plot.title, most: 200, required: true },
      { id: 'edit-description', label: 'Description', value: plot.description, kind: 'lines', most: 20_000 },
      { id: 'edit-tags', label: 'Tags', value: plot.tags.join(', '), placeholder: 'separated by commas' },
      { id: 'edit-collection', label: 'Collection', value: plot.collection, most: 60, list: 'collection-names' },
    ],
    [
      { name: 'save', title: 'Change', look: 'primary', checks: true },
      { name: 'remove', title: 'Remove the plot…', look: 'danger' },
    ],
  );
  if (answer?.choice === 'remove') await remove(plot);
  if (answer?.choice !== 'save') return;
  const saved = await client.update(plot.id, {
    title: answer.value('edit-title'),
    description: answer.value('edit-description'),
    tags: answer.value('edit-tags').split(','),
    collection: answer.value('edit-collection'),
  });
  if (!saved.ok) notice(saved.reason);
  else await refresh();
}

async function remove(plot: Plot): Promise<void> {
  const answer = await ask(
    'remove-dialog',
    `Remove ${plot.title}?`,
    [],
    [{ name: 'remove', title: 'Remove', look: 'danger' }],
    'This also removes its versions, comments and links, for everyone.',
  );
  if (answer === undefined) return;
  const removed = await client.remove(plot.id);
  if (!removed.ok) notice(removed.reason);
  else await refresh();
}

// ---- begin

const upload = new UploadDialog(client, (plot) => {
  notice(`“${plot.title}” is in the library.`, false);
  query.value = '';
  void refresh();
});
byId('upload').onclick = () => upload.open();
setIcon(byId('theme'), 'theme');
startTheme(() => {});
byId('theme').onclick = toggleTheme;
void refresh();
