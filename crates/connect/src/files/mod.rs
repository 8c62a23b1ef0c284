//! Files: those of a folder, or that a glob names, as they come and grow; and a folder that rows are written into. Or
//! objects of a store.
//!
//! | module     | what is in it                                             |
//! |------------|-----------------------------------------------------------|
//! | `list`     | which files there are                                     |
//! | `position` | how far a file was read, and what identifies it           |
//! | `tail`     | one file: whole lines from where it was left              |
//! | `source`   | all files, in turn                                        |
//! | `folders`  | rows by the folder that they belong to                    |
//! | `prepared` | what a checkpoint keeps of what is ready                  |
//! | `sink`     | rows into files that appear when they are whole           |
//! | `upload`   | rows into objects that do                                 |

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
