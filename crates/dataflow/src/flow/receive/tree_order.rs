//! The stream of a copy that takes two trees in turn, put together again: block n comes along tree n % 2, marks along
//! the tree of the block behind them, and the end along both. Each tree keeps its order.

use std::collections::VecDeque;

/// An item of a stream that takes two trees.
pub(super) enum TreeItem<T> {
    /// A block.
    Block(T),
    /// A mark.
    Mark(T),
    /// The end of the stream, which each tree brings.
    End(T),
}

impl<T> TreeItem<T> {
    pub(super) fn into_inner(self) -> T {
        match self {
            TreeItem::Block(inner) | TreeItem::Mark(inner) | TreeItem::End(inner) => inner,
        }
    }
}

/// See the module.
pub(super) struct TreeOrder<T> {
    blocks: u64,
    waiting: [VecDeque<TreeItem<T>>; 2],
    over: bool,
}

impl<T> TreeOrder<T> {
    pub(super) fn new() -> Self {
        TreeOrder { blocks: 0, waiting: Default::default(), over: false }
    }

    /// An item has come along `tree`.
    pub(super) fn push(&mut self, tree: usize, item: TreeItem<T>) {
        if !self.over {
            self.waiting[tree].push_back(item);
        }
    }

    /// The next item of the stream, if it has come.
    pub(super) fn pop(&mut self) -> Option<T> {
        match self.waiting[(self.blocks % 2) as usize].pop_front()? {
            TreeItem::Block(block) => {
                self.blocks += 1;
                Some(block)
            }
            TreeItem::Mark(mark) => Some(mark),
            // No block follows on this tree, so none does on the other.
            TreeItem::End(end) => {
                self.close();
                Some(end)
            }
        }
    }

    /// Nobody takes anything of it any more: what waits for others must not keep its credit.
    pub(super) fn close(&mut self) {
        self.over = true;
        self.waiting.iter_mut().for_each(VecDeque::clear);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However far one tree is ahead of the other: a block in another's place would be an error at its receiver, a
        /// barrier in another place would cut a checkpoint elsewhere than at other copies.
        #[test]
        fn the_order_is_that_of_the_sender(
            marks in prop::collection::vec(any::<bool>(), 0..40),
            picks in prop::collection::vec(any::<bool>(), 100),
        ) {
            let (mut sent, mut blocks) = (Vec::new(), 0);
            let mut trees = [VecDeque::new(), VecDeque::new()];
            for is_mark in marks {
                let number = sent.len();
                trees[blocks % 2].push_back(if is_mark { TreeItem::Mark(number) } else { TreeItem::Block(number) });
                blocks += usize::from(!is_mark);
                sent.push(number);
            }
            trees.iter_mut().for_each(|tree| tree.push_back(TreeItem::End(sent.len())));
            sent.push(sent.len());

            let (mut order, mut came) = (TreeOrder::new(), Vec::new());
            let mut picks = picks.into_iter().cycle();
            while trees.iter().any(|tree| !tree.is_empty()) {
                let first = usize::from(picks.next().unwrap());
                let tree = if trees[first].is_empty() { 1 - first } else { first };
                order.push(tree, trees[tree].pop_front().unwrap());
                came.extend(std::iter::from_fn(|| order.pop()));
            }
            prop_assert_eq!(came, sent);
        }
    }
}
