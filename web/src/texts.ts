// Numbers and names as people read them. Pure.

export function shortNumber(value: number): string {
  return Number(value.toPrecision(4)).toLocaleString('en', { maximumSignificantDigits: 4 });
}

/** `1 point`, `2,000 points`. */
export function count(number: number, what: string): string {
  return `${number.toLocaleString('en')} ${what}${number === 1 ? '' : 's'}`;
}

/** A text that fits: what is too long ends in dots. */
export function cut(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`;
}
