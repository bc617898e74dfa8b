//! The thread that reads the library, so that keys are answered at once.
//!
//! A task takes the place of an earlier one of its kind: of what was scrolled past, nothing is loaded. A long search is
//! done in parts, between which the other tasks have their turn.

use std::collections::VecDeque;
use std::mem::discriminant;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::{io, thread};

use anyhow::bail;
use rustix::event::{EventfdFlags, eventfd};

use super::super::log::{Listed, command_line, is_quiet};
use super::super::out::{Console, OutputFormat};
use super::super::past::{note_use, visible_sources};
use super::super::sentence;
use super::detail::Detail;
use super::listing::Row;
use super::state::{Answer, DetailKey, Effect, Search};
use super::undoing::perform;
use crate::cli::Ui;
use crate::git::below;
use crate::library::log::EntryState;
use crate::library::scope::Scope;
use crate::library::undone::UndoneRecordings;
use crate::library::{Entry, Library};
use crate::snapshot::change::PathEffect;
use crate::snapshot::{FileRecord, Snapshot};
use crate::sync::lock;

/// How many recordings are searched before other tasks have their turn.
const PART: usize = 32;

/// Whose recordings are read, and where.
pub struct Reader {
    /// The library.
    pub library: Library,
    /// What the view is about.
    pub scope: Scope,
    /// The options.
    pub args: Ui,
}

/// The tasks, and what wakes the thread that waits for one.
#[derive(Default)]
struct Queue {
    tasks: Mutex<VecDeque<Effect>>,
    added: Condvar,
}

impl Queue {
    /// Adds a task in place of the one of its kind.
    fn push(&self, task: Effect) {
        let mut tasks = lock(&self.tasks);
        tasks.retain(|other| discriminant(other) != discriminant(&task));
        tasks.push_back(task);
        self.added.notify_one();
    }

    /// Adds the rest of a task, unless there is another one of its kind.
    fn push_rest(&self, task: Effect) {
        let mut tasks = lock(&self.tasks);
        if !has(&tasks, &task) {
            tasks.push_back(task);
        }
    }

    fn pop(&self) -> Effect {
        let mut tasks = lock(&self.tasks);
        loop {
            if let Some(task) = tasks.pop_front() {
                return task;
            }
            tasks = self.added.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Whether there is a task of the same kind.
fn has(tasks: &VecDeque<Effect>, task: &Effect) -> bool {
    tasks.iter().any(|other| discriminant(other) == discriminant(task))
}

/// The thread, as the runner sees it.
pub struct Worker {
    queue: Arc<Queue>,
    answers: Receiver<Answer>,
    wake: Arc<OwnedFd>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn start(reader: Reader) -> io::Result<Worker> {
        let (queue, wake) = (
            Arc::new(Queue::default()),
            Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        );
        let (sender, answers) = channel();
        let outlet = Outlet { sender: Some(sender), wake: Arc::clone(&wake) };
        let tasks = Arc::clone(&queue);
        let run = move || {
            loop {
                let task = tasks.pop();
                outlet.send(reader.answer(task, &tasks));
            }
        };
        thread::Builder::new().name("reader".to_owned()).spawn(run)?;
        Ok(Worker { queue, answers, wake })
    }

    /// Gives it a task.
    pub fn push(&self, task: Effect) {
        self.queue.push(task);
    }

    /// The descriptor that is readable while there are answers.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The answers that are there.
    ///
    /// # Errors
    /// The thread has ended, which only a panic does.
    pub fn answers(&self) -> Result<Vec<Answer>, TryRecvError> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let mut answers = Vec::new();
        loop {
            match self.answers.try_recv() {
                Ok(answer) => answers.push(answer),
                Err(TryRecvError::Empty) => return Ok(answers),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Where the answers go. That it is dropped is told, too: the thread has ended.
struct Outlet {
    sender: Option<Sender<Answer>>,
    wake: Arc<OwnedFd>,
}

impl Outlet {
    fn send(&self, answer: Option<Answer>) {
        if let (Some(sender), Some(answer)) = (&self.sender, answer)
            && sender.send(answer).is_ok()
        {
            self.wake();
        }
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.sender = None;
        self.wake();
    }
}

impl Reader {
    /// The recordings to list, the newest first.
    ///
    /// # Errors
    /// The library can't be read.
    pub fn rows(&self) -> anyhow::Result<Vec<Row>> {
        let undone = UndoneRecordings::of(&self.library)?;
        let entries = self.library.entries()?.into_iter().rev();
        let is_listed = |entry: &Entry| {
            (self.args.reads || !is_quiet(entry)) && self.scope.contains(entry, &self.library)
        };
        Ok(entries.filter(is_listed).map(|entry| row(entry, &undone)).collect())
    }

    fn answer(&self, task: Effect, queue: &Queue) -> Option<Answer> {
        let told = |error: anyhow::Error| sentence(&error);
        match task {
            Effect::Reload => Some(Answer::Log(self.rows().map_err(told))),
            Effect::Show(key) => {
                let task = Effect::Show(key.clone());
                let detail =
                    self.detail(&key, &|| has(&lock(&queue.tasks), &task)).map_err(told).transpose()?;
                Some(Answer::Detail(key, detail))
            }
            Effect::Search(search) => Some(self.search(search, queue)),
            Effect::History(path) => {
                let rows = self.history(&path).map_err(told);
                Some(Answer::History(path, rows))
            }
            Effect::Undo(request) => {
                let report = perform(&request, &self.args.access, self.args.all).map_err(told);
                Some(Answer::Undo(request, report))
            }
            Effect::Quit | Effect::Suspend | Effect::Redraw => None,
        }
    }

    fn detail(&self, key: &DetailKey, is_superseded: &dyn Fn() -> bool) -> anyhow::Result<Option<Detail>> {
        let directory = self.library.directory_of(&key.id);
        let error = match Snapshot::open(&directory) {
            Ok(snapshot) => return Detail::of(&snapshot, key.path.as_deref(), is_superseded),
            Err(error) => error,
        };
        match Entry::unfinished(&directory).map(|entry| entry.state) {
            Some(EntryState::Running) => {
                bail!("it is still running: what it changes is shown when it has ended")
            }
            Some(_) => {
                bail!("its recorder was killed: agent-snapshot recover {} makes a snapshot of it", key.id)
            }
            None => Err(error.into()),
        }
    }

    /// Searches the paths of some recordings; of the others, later.
    fn search(&self, Search { text, mut ids }: Search, queue: &Queue) -> Answer {
        let rest = ids.split_off(PART.min(ids.len()));
        let has_text = |id: &&String| {
            let snapshot = Snapshot::open(&self.library.directory_of(id));
            snapshot.is_ok_and(|snapshot| {
                let start = &snapshot.header().start_cwd;
                let is_one = |record: &FileRecord| {
                    let name = below(&record.path, start).unwrap_or(&record.path);
                    String::from_utf8_lossy(name).to_lowercase().contains(&text)
                        && PathEffect::of(record).lasts()
                };
                snapshot.files().iter().any(is_one)
            })
        };
        let found = ids.iter().filter(has_text).cloned().collect();
        if !rest.is_empty() {
            queue.push_rest(Effect::Search(Search { text: text.clone(), ids: rest }));
        }
        Answer::Found { text, searched: ids, found }
    }

    /// The recordings that changed a path, the newest first, as far as the index tells.
    fn history(&self, path: &[u8]) -> anyhow::Result<Vec<Row>> {
        // A bundle that can't be read is named where it is shown.
        let mut console = Console::new(io::sink(), io::sink(), OutputFormat::PLAIN);
        let sources = visible_sources(&self.library, &self.args.access, &mut console)?;
        let undone = UndoneRecordings::of(&self.library)?;
        let mut rows = Vec::new();
        for source in sources.that_changed(path).rev().map(|number| sources.get(number)) {
            if let Some(entry) = &source.entry {
                note_use(source, &self.library, &self.args.access)?;
                rows.push(row(entry.clone(), &undone));
            }
        }
        Ok(rows)
    }
}

fn row(entry: Entry, undone: &UndoneRecordings) -> Row {
    let listed = Listed::of(entry, undone);
    Row { command: command_line(&listed.entry), undone: listed.mark(), entry: listed.entry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::ui::undoing::UndoRequest;

    #[test]
    fn of_what_is_scrolled_past_only_the_last_is_loaded() {
        let queue = Queue::default();
        let show = |id: usize| Effect::Show(DetailKey { id: id.to_string(), path: None });
        let search = |text: &str| Effect::Search(Search { text: text.to_owned(), ids: Vec::new() });
        let undo = Effect::Undo(UndoRequest::default());
        queue.push(undo.clone());
        queue.push(search("old"));
        (0..1000).for_each(|id| queue.push(show(id)));
        queue.push(search("new"));
        // The rest of a search that was given up.
        queue.push_rest(search("old"));
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [undo, show(999), search("new")]);
        assert!(lock(&queue.tasks).is_empty());
        queue.push_rest(search("rest"));
        assert_eq!(queue.pop(), search("rest"));
    }
}
