// Numbers and names as people read them. Pure.

/** `1,235`, `0.5`, and where that would be long `229.7M`, `1.235B` or `1.235e39`. */
export function shortNumber(value: number): string {
  const rounded = Number(value.toPrecision(4));
  const size = Math.abs(rounded);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return rounded.toExponential().replace('e+', 'e');
  return rounded.toLocaleString('en', { maximumSignificantDigits: 4, notation: size >= 1e7 ? 'compact' : 'standard' });
}

/** `1 point`, `2,000 points`. */
export function count(number: number, what: string): string {
  return `${number.toLocaleString('en')} ${what}${number === 1 ? '' : 's'}`;
}

/** What part of all points is drawn, and how long that is so. */
export function drawnText(points: string, drawn: number, of: number, when: string): string {
  if (drawn === 0) return `${points}, loading…`;
  const ratio = of / drawn;
  return `${points}, 1 in ${ratio < 10 ? ratio.toFixed(1) : Math.round(ratio).toLocaleString('en')} drawn ${when}`;
}

/** The parts of a name between which a line may end: names of files have no blanks. */
export function breakable(name: string): string[] {
  return name.match(/[^_./-]*[_./-]+|[^_./-]+/g) ?? [];
}

/** A text that fits: what is too long ends in dots. */
export function cut(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`;
}
