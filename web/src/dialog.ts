// A question with a few fields, and what was answered. Every dialog of the pages that asks for something is one of these.

import { make } from './dom';

export type Field = {
  id: string;
  label: string;
  value: string;
  kind?: 'text' | 'lines' | 'colour';
  /** What there is to choose from: the value, and what it is called. */
  options?: readonly (readonly [value: string, title: string])[];
  placeholder?: string;
  /** Most letters. */
  most?: number;
  required?: boolean;
  /** The id of a list of suggestions. */
  list?: string;
};
/** A button; the first is pressed by Enter. Only those that check want the required fields to be filled. */
export type Choice = { name: string; title: string; look?: 'primary' | 'danger'; checks?: boolean };
export type Answer = { choice: string; value: (id: string) => string };

const CANCEL = 'cancel';

/** Asks; the answer is undefined if nothing was chosen. */
export function ask(
  id: string,
  title: string,
  fields: readonly Field[],
  choices: readonly Choice[],
  text = '',
): Promise<Answer | undefined> {
  const heading = make('h2', { text: title });
  heading.id = `${id}-title`;
  const inputs = fields.map(inputOf);
  const buttons = [...choices.slice(0, 1), { name: CANCEL, title: 'Cancel' }, ...choices.slice(1)].map((choice) => {
    const button = make('button', { class: choice.look ?? '', text: choice.title });
    button.value = choice.name;
    button.formNoValidate = choice.checks !== true;
    return button;
  });
  const form = make(
    'form',
    {},
    heading,
    ...(text === '' ? [] : [make('p', { text })]),
    ...inputs.map((input, i) => make('label', {}, `${fields[i].label} `, input)),
    make('div', { class: 'buttons' }, ...buttons),
  );
  form.method = 'dialog';
  const dialog = make('dialog', {}, form);
  dialog.id = id;
  dialog.setAttribute('aria-labelledby', heading.id);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((answer) => {
    dialog.onclose = () => {
      const choice = dialog.returnValue;
      const values = new Map(inputs.map((input) => [input.id, input.value]));
      dialog.remove();
      answer(choice === '' || choice === CANCEL ? undefined : { choice, value: (id) => values.get(id) ?? '' });
    };
  });
}

function inputOf(field: Field): HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement {
  const { id, value, kind = 'text', options, placeholder, most, required, list } = field;
  if (options !== undefined) {
    const select = make('select');
    select.append(...options.map(([value, title]) => new Option(title, value)));
    return Object.assign(select, { id, value });
  }
  const input = make(kind === 'lines' ? 'textarea' : 'input');
  if (input instanceof HTMLInputElement) {
    if (kind === 'colour') input.type = 'color';
    if (list !== undefined) input.setAttribute('list', list);
    input.autocomplete = 'off';
  } else input.rows = 3;
  if (most !== undefined) input.maxLength = most;
  return Object.assign(input, { id, value, placeholder: placeholder ?? '', required: required === true });
}
