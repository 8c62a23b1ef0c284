//! Where queries spill to: a folder for each engine, named after its process, so that whoever comes later can remove what
//! a killed one has left.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// An engine's folder. Dropping it removes it, with what is in it, and those of processes that are no more.
#[derive(Debug)]
pub(crate) struct SpillDir {
    root: PathBuf,
    path: PathBuf,
}

impl SpillDir {
    /// Names a folder in `root`, and removes those of processes that are no more. DataFusion makes it when it spills.
    pub(crate) fn in_root(root: &Path) -> Self {
        clear(root);
        // What goes wrong here is told by who wants to write.
        let _ = std::fs::create_dir_all(root);
        SpillDir { root: root.to_owned(), path: root.join(name(std::process::id())) }
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SpillDir {
    fn drop(&mut self) {
        // There is nothing there if nothing was spilled, and nobody to tell of anything else.
        let _ = std::fs::remove_dir_all(&self.path);
        // Also what others have left that were killed meanwhile.
        clear(&self.root);
    }
}

/// What the folders of all processes whose numbers mean something here have in common: the disk may serve many machines, and
/// a machine many containers.
fn prefix() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino());
    format!("tidemill-spill-{}-{space}-", boot.split('-').next().unwrap_or_default().trim())
}

/// A name that no other folder has.
fn name(process: u32) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}{process}-{}", prefix(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Removes the folders of processes that are no more.
fn clear(root: &Path) {
    let prefix = prefix();
    // Best effort throughout: others may be clearing too, and nothing here depends on it.
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        let process = rest.and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !is_running(process)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A killed process stays in the list until its parent has asked how it ended.
fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a killed process has left must go, and what a living one uses must stay.
    #[test]
    fn only_the_dead_are_cleared() {
        let root = std::env::temp_dir().join(format!("tidemill-spill-test-{}", std::process::id()));
        let own = SpillDir { root: root.clone(), path: root.join(name(std::process::id())) };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = root.join(name(child.id()));
        let other = root.join(format!("tidemill-spill-00000000-1-{}-0", child.id()));
        child.wait().unwrap();
        for dir in [own.path(), &dead, &other] {
            std::fs::create_dir_all(dir.join("inside")).unwrap();
        }
        clear(&root);
        assert!(own.path().exists() && other.exists() && !dead.exists());
        let path = own.path().to_owned();
        drop(own);
        assert!(!path.exists());
        std::fs::remove_dir_all(root).unwrap();
    }
}
