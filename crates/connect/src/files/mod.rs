//! Files: a source of the files in a folder or matching a glob, as they arrive and grow, and a sink that writes rows to
//! a folder. Both also work with objects of a store.
//!
//! | module     | contents                                                  |
//! |------------|-----------------------------------------------------------|
//! | `list`     | lists files                                               |
//! | `position` | how far a file has been read, and how it is identified    |
//! | `tail`     | reads one file: whole lines from a position on            |
//! | `source`   | reads all files, in turn                                  |
//! | `folders`  | splits rows by partition folder                           |
//! | `prepared` | prepared files in a checkpoint                            |
//! | `sink`     | writes rows to files that appear once they are complete   |
//! | `upload`   | writes rows to objects that do                            |

mod folders;
mod list;
mod position;
mod prepared;
mod sink;
mod source;
mod tail;
mod upload;

pub(crate) use sink::sink;
pub(crate) use source::source;
