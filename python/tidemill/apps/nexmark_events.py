"""The events of Nexmark: new persons, auctions that they open, and bids, each generated from its number alone.

Of 50 events in a row the first is a person, three are auctions and 46 are bids. Numbers, proportions and hot keys are
those of the generator of Apache Beam, which other implementations follow; random numbers are not, so the rows differ.

Source: P. Tucker, K. Tufte, V. Papadimos, D. Maier: NEXMark, a benchmark for queries over data streams (2008), and
org.apache.beam.sdk.nexmark.sources.generator.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass

import tidemill as tm

__all__ = ["Events"]

#: The time of the first event: where the source `tidemill.stream.from_generator` begins.
_START_US = 1_767_225_600_000_000
#: Kinds among each 50 events.
_ALL, _PERSONS, _AUCTIONS = 50, 1, 3
#: Ids begin here, so that they cannot be confused with event numbers.
_FIRST_ID, _FIRST_CATEGORY = 1000, 10
_CATEGORIES = 5
#: The number of persons who may open auctions and bid, of open auctions, and of those of each kind that do not exist
#: yet.
_ACTIVE_PERSONS, _OPEN_AUCTIONS, _LEAD = 1000, 100, 10
#: One of this many successive persons or auctions is hot.
_HOT_OF = 100
#: One of this many is not hot: sellers of auctions, auctions of bids, bidders of bids.
_HOT_SELLERS, _HOT_AUCTIONS, _HOT_BIDDERS = 4, 2, 4

_DICE = random.Random(0)
#: The source of texts. Of the generator's methods, only `random` gives the same in every version of Python.
_LETTERS = "".join(string.ascii_lowercase[int(26 * _DICE.random())] for _ in range(2048))

_FIRST_NAMES = "Ada,Alan,Barbara,Edsger,Frances,Grace,John,Leslie,Margaret,Niklaus,Tony"
_LAST_NAMES = "Baker,Carter,Cooper,Fisher,Mason,Miller,Potter,Taylor,Weaver"
_CITIES = "Astoria,Casper,Eureka,Flagstaff,Fresno,Laramie,Medford,Moscow,Spokane,Tucson"
#: Query 3 asks for three of these.
_STATES = "AZ,CA,ID,OR,WA,WY"


def _bits(of: str, skip: int, count: int) -> str:
    """Return some bits of a number, which may be negative, as a nonnegative number."""
    return f"(({of} >> {skip}) & {(1 << count) - 1})"


def _one_of(words: str, number: str) -> str:
    return f"split_part('{words}', ',', {number} % {words.count(',') + 1} + 1)"


def _text(at: str, length: object) -> str:
    """Return a string of at most 512 letters; `at` is below 1024."""
    # Substrings of a view are slices, without copying.
    return f"substr(arrow_cast('{_LETTERS}', 'Utf8View'), 1 + {at}, {length})"


def _price(bits: str) -> str:
    """Return a price in cents, from one dollar to a million, uniform over orders of magnitude, from 20 bits."""
    return f"cast(round(100 * power(10.0, 6.0 * {bits} / {1 << 20}.0)) as bigint)"


# Each kind selects its events, and takes as many 64-bit random numbers as it needs: `r` and, for the rarer kinds, `s`.
# With only one round of multiplying and shifting, neighboring numbers would look alike.
_NUMBERS = f"""
    select number, time, epoch, place, r, wrapping_mul(r ^ (r >> 29), 7046029254386353131) as s
    from (
        select number, time, number / {_ALL} as epoch, number % {_ALL} as place, wrapping_mul(m ^ (m >> 32), -4658895280553007687) as r
        from (select number, time, wrapping_mul(number + 1, -7046029254386353131) as m from numbers)
    )
"""

_PERSON = f"""
    select
        {_FIRST_ID} + epoch as id,
        concat({_one_of(_FIRST_NAMES, _bits("r", 8, 12))}, ' ', {_one_of(_LAST_NAMES, _bits("r", 20, 12))}) as name,
        concat({_text(_bits("r", 32, 10), 7)}, '@', {_text(_bits("r", 42, 10), 5)}, '.com') as email,
        concat_ws(' ',
            lpad(cast({_bits("s", 8, 13)} as varchar), 4, '0'),
            lpad(cast({_bits("s", 21, 13)} as varchar), 4, '0'),
            lpad(cast({_bits("s", 34, 13)} as varchar), 4, '0'),
            lpad(cast({_bits("s", 47, 13)} as varchar), 4, '0')) as credit_card,
        {_one_of(_CITIES, _bits("s", 16, 12))} as city,
        {_one_of(_STATES, _bits("s", 28, 12))} as state,
        time as date_time,
        {_text(_bits("s", 40, 10), f"110 + {_bits('s', 50, 5)}")} as extra
    from ({_NUMBERS}) where place < {_PERSONS}
"""


def _person_of(hot: str, chosen: str, hot_place: int) -> str:
    """Return the id of a hot person, or of any active one."""
    active = f"least(epoch + 1, {_ACTIVE_PERSONS})"
    anybody = f"epoch + 1 - {active} + {chosen} % ({active} + {_LEAD})"
    return f"{_FIRST_ID} + case when {hot} > 0 then epoch / {_HOT_OF} * {_HOT_OF} + {hot_place} else {anybody} end"


_AUCTION = f"""
    select
        {_FIRST_ID} + {_AUCTIONS} * epoch + place - {_PERSONS} as id,
        {_text(_bits("r", 0, 10), 20)} as item_name,
        {_text(_bits("r", 10, 10), 100)} as description,
        initial_bid,
        initial_bid + {_price(_bits("s", 0, 20))} as reserve,
        time as date_time,
        arrow_cast(cast(time as bigint) + 1000 + (({_bits("s", 20, 20)} * {{length_us}}) >> 20), 'Timestamp(Microsecond, None)')
            as expires,
        {_person_of(f"{_bits('r', 40, 4)} % {_HOT_SELLERS}", _bits("r", 44, 16), 0)} as seller,
        {_FIRST_CATEGORY} + {_bits("s", 40, 12)} % {_CATEGORIES} as category,
        {_text(_bits("s", 52, 10), f"270 + {_bits('s', 40, 7)}")} as extra
    from (select *, {_price(_bits("r", 20, 20))} as initial_bid from ({_NUMBERS}))
    where place >= {_PERSONS} and place < {_PERSONS + _AUCTIONS}
"""

_LAST = f"({_AUCTIONS} * epoch + {_AUCTIONS - 1})"
_OPEN = f"least({_LAST}, {_OPEN_AUCTIONS})"
_BID = f"""
    select
        {_FIRST_ID} + case
            when {_bits("r", 0, 4)} % {_HOT_AUCTIONS} > 0 then {_LAST} / {_HOT_OF} * {_HOT_OF}
            else {_LAST} - {_OPEN} + {_bits("r", 4, 12)} % ({_OPEN} + 1 + {_LEAD})
        end as auction,
        {_person_of(f"{_bits('r', 16, 4)} % {_HOT_BIDDERS}", _bits("r", 20, 16), 1)} as bidder,
        {_price(_bits("r", 36, 20))} as price,
        time as date_time,
        {_text(_bits("r", 10, 10), f"52 + {_bits('r', 56, 5)}")} as extra
    from ({_NUMBERS}) where place >= {_PERSONS + _AUCTIONS}
"""


@dataclass(frozen=True)
class Events:
    """A number of events, each a number of microseconds of event time after the one before."""

    count: int
    step_us: int = 100

    def streams(self, per_s: float = 0, splits: int = 1) -> dict[str, tm.DataSet]:
        """Return streams ``person``, ``auction`` and ``bid``: at a given rate, or as fast as they are processed."""
        numbers = tm.stream.from_generator(per_s, rows=self.count, splits=splits, step=self.step_us / 1_000_000)
        return self._of(numbers)

    def tables(self) -> dict[str, tm.DataSet]:
        """Return the same rows as tables."""
        time = f"arrow_cast({_START_US} + value * {self.step_us}, 'Timestamp(Microsecond, None)')"
        return self._of(tm.sql(f"select value as number, {time} as time from range(0, {self.count})"))

    def _of(self, numbers: tm.DataSet) -> dict[str, tm.DataSet]:
        # Long enough that on average, as many auctions are open as bids choose from.
        length_us = 2 * _OPEN_AUCTIONS * _ALL // _AUCTIONS * self.step_us
        texts: Mapping[str, str] = {
            "person": _PERSON,
            "auction": _AUCTION.format(length_us=length_us),
            "bid": _BID,
        }
        return {name: tm.sql(text, numbers=numbers) for name, text in texts.items()}
