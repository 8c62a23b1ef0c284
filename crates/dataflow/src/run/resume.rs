//! Where a run begins: anew, or from a checkpoint that all workers can read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use tidemill_collective::{Communicator, Op};
use tokio::runtime::Handle;

use crate::checkpoint::coordinator::Member;
use crate::checkpoint::store::FolderLock;
use crate::checkpoint::{CheckpointSettings, Manifest, Restored, StoreError, hub};
use crate::error::DataflowError;
use crate::flow::Flow;

/// What a run that makes checkpoints begins with.
pub(crate) struct Resume {
    pub settings: CheckpointSettings,
    /// Names what this run writes.
    pub run: String,
    pub job: String,
    pub members: Vec<Member>,
    pub manifest: Option<Arc<Manifest>>,
    /// By task and copy, of this worker's.
    pub restored: HashMap<(u32, u32), Restored>,
    /// Worker 0's.
    pub lock: Option<FolderLock>,
}

/// What worker 0 found.
#[derive(serde::Serialize, serde::Deserialize)]
enum Found {
    /// Nothing was ever written there.
    Nothing { run: String },
    /// The newest checkpoint that has not been refused yet.
    Checkpoint { run: String, manifest: Box<Manifest> },
    /// It cannot be.
    Error { reason: String },
}

impl Resume {
    /// Collective: all workers begin from the same checkpoint, the newest that every one of them can read its part of.
    ///
    /// # Errors
    /// The same on every worker: `Checkpoint`, when there are checkpoints and none can be gone on from; the job's fault.
    pub(crate) fn agree(
        comm: &Communicator,
        pool: &Handle,
        flow: &Flow,
        job: &str,
        settings: &CheckpointSettings,
    ) -> Result<Resume, DataflowError> {
        let mut names = HashSet::new();
        for task in &flow.tasks {
            if !task.streaming {
                return Err(DataflowError::Checkpoint(format!(
                    "task \"{}\" keeps rows until its input ends, or does not know how to save its state",
                    task.name
                )));
            }
            if !names.insert(&task.name) {
                let reason = format!("two tasks are named \"{}\": a checkpoint tells them apart by name", task.name);
                return Err(DataflowError::Checkpoint(reason));
            }
        }
        let first = comm.rank() == 0;
        let run =
            format!("{:x}-{:x}", SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos()), std::process::id());
        let lock = if first { settings.store.lock() } else { Ok(None) };
        let mut epochs = Vec::new();
        let mut failed = lock.as_ref().err().cloned();
        if first && failed.is_none() {
            match pool.block_on(settings.store.epochs()) {
                Ok(found) => epochs = found,
                Err(error) => failed = Some(error),
            }
        }
        let mut older = epochs.iter().copied();
        let mut resume = Resume {
            settings: settings.clone(),
            run: String::new(),
            job: job.to_owned(),
            members: flow
                .tasks
                .iter()
                .map(|t| Member { name: t.name.clone(), copies: t.workers.len() as u32 })
                .collect(),
            manifest: None,
            restored: HashMap::new(),
            lock: lock.unwrap_or_default(),
        };
        loop {
            let found = first.then(|| match &failed {
                Some(error) => Found::Error { reason: error.to_string() },
                None => resume.next(pool, &run, &mut older, epochs.len()),
            });
            match share(comm, found)? {
                Found::Error { reason } => return Err(DataflowError::Checkpoint(reason)),
                Found::Nothing { run } => {
                    resume.run = run;
                    return Ok(resume);
                }
                Found::Checkpoint { run, manifest } => {
                    resume.run = run;
                    let read = pool.block_on(resume.read(&manifest, flow, comm.rank()));
                    let mut all = [0u8];
                    comm.allreduce(&[u8::from(read.is_ok())], &mut all, &Op::Min)?;
                    if let Err(error) = &read {
                        eprintln!("tidemill: checkpoint {} is left out: {error}", manifest.epoch);
                    }
                    if let (1, Ok(restored)) = (all[0], read) {
                        resume.restored = restored;
                        resume.manifest = Some(Arc::from(manifest));
                        return Ok(resume);
                    }
                }
            }
        }
    }

    /// The next older checkpoint that has a manifest which fits the job. On worker 0.
    fn next(&self, pool: &Handle, run: &str, older: &mut impl Iterator<Item = u64>, all: usize) -> Found {
        let (run, store) = (run.to_owned(), &self.settings.store);
        for epoch in older {
            match pool.block_on(store.manifest(epoch)) {
                Ok(manifest) => {
                    return match self.fits(&manifest) {
                        Ok(()) => Found::Checkpoint { run, manifest: Box::new(manifest) },
                        Err(reason) => Found::Error { reason: format!("checkpoints in {}: {reason}", store.place()) },
                    };
                }
                Err(error) => eprintln!("tidemill: checkpoint {epoch} is left out: {error}"),
            }
        }
        match all {
            0 => Found::Nothing { run },
            all => Found::Error {
                // Beginning anew in silence would count twice what had been counted.
                reason: format!(
                    "checkpoints in {}: none of {all} can be read; remove them to begin anew",
                    store.place()
                ),
            },
        }
    }

    /// Whether a checkpoint is one of this job.
    fn fits(&self, manifest: &Manifest) -> Result<(), String> {
        if manifest.job != self.job {
            return Err(format!(
                "they are of job \"{}\", not of \"{}\"; each job needs a place of its own",
                manifest.job, self.job
            ));
        }
        let known = |name: &String| self.members.iter().any(|member| &member.name == name);
        let kept = manifest.tasks.iter().filter(|(_, state)| !state.buckets.is_empty() || !state.splits.is_empty());
        let lost = kept.map(|(name, _)| name).find(|name| !known(name));
        match lost {
            Some(name) => Err(format!("they hold state of a task \"{name}\", which the job has no longer")),
            None => Ok(()),
        }
    }

    /// What this worker's copies begin with.
    async fn read(
        &self,
        manifest: &Manifest,
        flow: &Flow,
        me: u32,
    ) -> Result<HashMap<(u32, u32), Restored>, StoreError> {
        let mut restored = HashMap::new();
        for (at, task) in flow.tasks.iter().enumerate() {
            let copies = task.workers.len() as u32;
            for copy in (0..copies).filter(|&copy| task.workers[copy as usize] == me) {
                let read = hub::restore(&self.settings.store, manifest, &task.name, copy, copies).await?;
                restored.insert((at as u32, copy), read);
            }
        }
        Ok(restored)
    }
}

/// What worker 0 has, on every worker.
fn share(comm: &Communicator, found: Option<Found>) -> Result<Found, DataflowError> {
    let json = |found| serde_json::to_vec(&found).expect("it is made of numbers and texts");
    let mut bytes = found.map(json).unwrap_or_default();
    let mut len = [bytes.len() as u64];
    comm.bcast(&mut len, 0)?;
    bytes.resize(len[0] as usize, 0);
    comm.bcast(&mut bytes, 0)?;
    Ok(serde_json::from_slice(&bytes).expect("worker 0 runs the same program"))
}
