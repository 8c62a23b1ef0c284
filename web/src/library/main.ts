// The page of a library: its plots, found by word, tag and collection; uploads; descriptions.

import '../base.css';
import './library.css';
import { byId, make, setIcon } from '../dom';
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

let noticed: ReturnType<typeof setTimeout> | undefined;
function notice(text: string, wrong = true): void {
  const box = byId('notice');
  box.textContent = text;
  box.classList.toggle('wrong', wrong);
  box.hidden = false;
  clearTimeout(noticed);
  noticed = setTimeout(() => (box.hidden = true), wrong ? 8000 : 2500);
}

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
  const found = count(got.value.total, 'plot');
  byId('status').textContent =
    got.value.total > 0 ? found : query.value.trim() === '' ? 'No plots yet: upload one.' : 'Nothing is found.';
}

function card(plot: Plot): HTMLElement {
  const open = make('a', { class: 'title', text: plot.title });
  open.href = `/plots/${plot.id}?${new URLSearchParams({ token })}`;
  const edit = make('button', { title: `Describe or remove ${plot.title}`, onclick: () => describe(plot) });
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

function describe(plot: Plot): void {
  const dialog = byId<HTMLDialogElement>('edit-dialog');
  const field = (name: string) => byId<HTMLInputElement>(`edit-${name}`);
  field('title').value = plot.title;
  field('description').value = plot.description;
  field('tags').value = plot.tags.join(', ');
  field('collection').value = plot.collection;
  dialog.returnValue = '';
  dialog.onclose = async () => {
    if (dialog.returnValue === 'remove') remove(plot);
    if (dialog.returnValue !== 'save') return;
    const saved = await client.update(plot.id, {
      title: field('title').value,
      description: field('description').value,
      tags: field('tags').value.split(','),
      collection: field('collection').value,
    });
    if (!saved.ok) notice(saved.reason);
    else await refresh();
  };
  dialog.showModal();
}

function remove(plot: Plot): void {
  const dialog = byId<HTMLDialogElement>('remove-dialog');
  byId('remove-title').textContent = plot.title;
  dialog.returnValue = '';
  dialog.onclose = async () => {
    if (dialog.returnValue !== 'remove') return;
    const removed = await client.remove(plot.id);
    if (!removed.ok) notice(removed.reason);
    else await refresh();
  };
  dialog.showModal();
}

// ---- begin

const upload = new UploadDialog(client, (plot) => {
  notice(`“${plot.title}” is in the library.`, false);
  query.value = '';
  void refresh();
});
byId('upload').onclick = () => upload.open();
setIcon(byId('theme'), 'theme');
const root = document.documentElement;
root.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
byId('theme').onclick = () => {
  root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
};
void refresh();
