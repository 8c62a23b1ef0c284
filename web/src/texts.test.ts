// Numbers and names as people read them.

import { describe, expect, it } from 'vitest';
import { freeName } from './groups';
import { breakable, drawnText, shortNumber } from './texts';

describe('texts', () => {
  it('have no number that is longer than people read', () => {
    const numbers = [
      0, 12_345.678, 9_999_000, 229_712_345, 999_960_000, 1.5e14, -1.23456e39, 0.000123456, 0.0000999, 1e-40, -2e-310,
    ];
    const short = [
      '0',
      '12,350',
      '9,999,000',
      '229.7M',
      '1B',
      '150T',
      '-1.235e39',
      '0.0001235',
      '9.99e-5',
      '1e-40',
      '-2e-310',
    ];
    expect(numbers.map(shortNumber)).toEqual(short);
    expect(shortNumber(Number.MAX_VALUE).length).toBeLessThan(12);
  });

  it('say how much is drawn, also when nothing is yet', () => {
    const texts = [0, 480_000, 250].map((drawn) => drawnText('Many', drawn, 1_200_000, 'now'));
    expect(texts).toEqual(['Many, loading…', 'Many, 1 in 2.5 drawn now', 'Many, 1 in 4,800 drawn now']);
  });

  it('end lines between the parts of a name', () => {
    expect(breakable('the_report-2024.csv of May')).toEqual(['the_', 'report-', '2024.', 'csv of May']);
    expect(breakable('__a')).toEqual(['__', 'a']);
    expect(breakable('')).toEqual([]);
  });

  it('count on where a name is taken', () => {
    expect(freeName('mine', ['yours'], 80)).toBe('mine');
    expect(freeName('mine', ['mine', 'mine 2'], 80)).toBe('mine 3');
    expect(freeName('a name', ['a name'], 6)).toBe('a na 2');
  });
});
