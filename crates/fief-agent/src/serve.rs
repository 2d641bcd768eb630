// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent: what it answers at its sockets, and what it writes at each turn, until it is told to end.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fief_control::{AgentPlace, Error, ErrorKind, Fief, Result, cpu_spent};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::door::Door;
use crate::http::{self, Answer, Request, Status};
use crate::journal::Journal;
use crate::memory;
use crate::metrics::{Format, Scrape};
use crate::pages::{self, Pages};
use crate::peer::Readers;
use crate::reading::{self, Readings};
use crate::record::{Folder, Keeper, RecorderOptions};
use crate::series::SeriesOptions;
use crate::textfile;
use crate::told::Told;
use crate::turns::Turns;

/// Between two looks at who listens, unless they are costly: how many descriptors there are is for others to say.
const LOOKS: Duration = Duration::from_secs(45);
/// Two thousandths of a CPU; the bound of the agent is five, with its scrapes and the journal's looks.
const TIMES_A_LOOK: u32 = 500;

/// What an agent does besides serving at its socket.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// Who reads at the socket.
    pub readers: Readers,
    /// Metrics alone, by HTTP, for whoever is on this machine.
    pub listen: Option<SocketAddr>,
    /// A folder of node_exporter's.
    pub textfile: Option<PathBuf>,
    /// Between two writes of that file.
    pub textfile_interval: Duration,
    /// Containers with series of their own, and series of verdicts by rule.
    pub series: SeriesOptions,
    /// What happens is written to the system's journal.
    pub journal: bool,
    /// Where usage is recorded, and how.
    pub record: Option<(Folder, RecorderOptions)>,
}

/// Is told what fails, once until it works again.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// One that serves.
pub struct Agent {
    place: AgentPlace,
    options: AgentOptions,
    answers: Arc<Answers>,
    address: Option<SocketAddr>,
    keeper: Option<Keeper>,
    textfile_failed: bool,
    warn: Warn,
    /// Ends those who look by themselves.
    _looks: Vec<Sender<()>>,
}

#[derive(Debug)]
struct Answers {
    readings: Readings,
    pages: Pages,
    told: Arc<Mutex<Told>>,
    series: SeriesOptions,
    records: bool,
    record_failures: AtomicU64,
}

impl Agent {
    /// Serves from now on. Errors: another agent does; an address or a folder cannot be had. A policy in force that
    /// cannot be read, as one of another version, and a full disk are no errors: `warn` is told, and the agent serves on.
    pub fn start(fief: Fief, options: AgentOptions, warn: Warn) -> Result<Self> {
        memory::keep_little();
        let place = fief.agent_place()?;
        let cannot = |what: String| move |error: io::Error| Error::new(ErrorKind::Other, format!("{what}: {error}"));
        if let Some(folder) = &options.textfile {
            // what one that was killed has left, whatever fails from here on
            textfile::remove(folder);
            fs::read_dir(folder).map(drop).map_err(cannot(cannot_write(folder)))?;
        }
        let keeper = options.record.clone().map(|(folder, options)| Keeper::open(folder, options)).transpose()?;
        let answers = Arc::new(Answers {
            readings: Readings::of(fief),
            pages: Pages::default(),
            told: Arc::default(),
            series: options.series,
            records: keeper.is_some(),
            record_failures: AtomicU64::new(0),
        });
        let socket = place.socket().to_owned();
        // who connects is asked for the user, so it does not matter what the mode is until it is set
        let listener = UnixListener::bind(&socket).map_err(cannot(format!("cannot make {}", socket.display())))?;
        options.readers.admit(&socket).map_err(cannot(format!("cannot set the mode of {}", socket.display())))?;
        let all = Arc::clone(&answers);
        let open = Door::Unix(listener, options.readers).open(Arc::new(move |request| all.answer(request)));
        open.map_err(cannot(format!("cannot serve at {}", socket.display())))?;
        let mut address = None;
        if let Some(listen) = options.listen {
            if !listen.ip().is_loopback() {
                return Err(Error::new(ErrorKind::Other, format!("{listen} is reached from elsewhere"))
                    .remedy("listen on 127.0.0.1 or [::1], and put a proxy that asks who it is in front of it"));
            }
            let what = || format!("cannot listen on {listen}");
            let listener = TcpListener::bind(listen).map_err(cannot(what()))?;
            address = listener.local_addr().ok();
            let some = Arc::clone(&answers);
            let metrics = Arc::new(move |request: &Request| some.answer_anybody(request));
            Door::Loopback(listener).open(metrics).map_err(cannot(what()))?;
        }
        let journal = options.journal.then(|| Journal::open(answers.readings.fief.pins().scope())).transpose();
        let journal = journal.map_err(cannot("cannot reach the system's journal".to_owned()))?;
        let (all, tell, is_told) = (Arc::clone(&answers), Arc::clone(&warn), journal.is_some());
        // the journal tells what fails
        let look = move |ended: Receiver<()>| {
            let warn = |problem: &str| {
                if !is_told {
                    tell(problem);
                }
            };
            all.look(&ended, &warn);
        };
        let mut looks = vec![spawn("fief-look", look).map_err(cannot("cannot start a thread".to_owned()))?];
        if let Some(journal) = journal {
            let all = Arc::clone(&answers);
            let keep = move |ended: Receiver<()>| journal.keep(&all.readings, &ended);
            looks.push(spawn("fief-journal", keep).map_err(cannot("cannot start a thread".to_owned()))?);
        }
        let mut agent = Self { place, options, answers, address, keeper, textfile_failed: false, warn, _looks: looks };
        agent.renew_textfile();
        memory::forget_start();
        Ok(agent)
    }

    /// The socket.
    pub fn socket(&self) -> &std::path::Path {
        self.place.socket()
    }

    /// Where metrics are, by HTTP.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Writes what is to be written until `wait`, which is given the time to the next turn, says that it is over.
    pub fn run(mut self, mut wait: impl FnMut(Option<Duration>) -> bool) {
        let warn = Arc::clone(&self.warn);
        let record = self.options.record.as_ref().map(|(_, options)| options.interval);
        let mut record = record.map(|interval| Turns::every(interval, Instant::now()));
        let textfile = self.options.textfile.as_ref().map(|_| self.options.textfile_interval);
        let mut textfile = textfile.map(|interval| Turns::every(interval, Instant::now() + interval));
        loop {
            let next = [&record, &textfile].into_iter().flatten().map(Turns::wait).min();
            if wait(next) {
                break;
            }
            let is_due = record.as_mut().is_some_and(Turns::is_due);
            if let Some(keeper) = self.keeper.as_mut().filter(|_| is_due) {
                keeper.turn(self.answers.readings.fief.snapshot().map(Arc::new), &mut |problem: &str| warn(problem));
                self.answers.record_failures.store(keeper.failures(), Ordering::Relaxed);
            }
            if textfile.as_mut().is_some_and(Turns::is_due) {
                self.renew_textfile();
            }
        }
        if let Some(folder) = &self.options.textfile {
            textfile::remove(folder);
        }
        if let Some(Err(error)) = self.keeper.take().map(Keeper::finish) {
            warn(&error.to_string());
        }
    }

    /// If there is to be one. Metrics that cannot be read are told by `Answers::look`; the file goes, so that nobody takes old numbers
    /// for new ones.
    fn renew_textfile(&mut self) {
        let Some(folder) = &self.options.textfile else { return };
        let Ok(page) = self.answers.page(Format::Text) else { return textfile::remove(folder) };
        let written = textfile::write(folder, |to| to.write_all(&page));
        if let Some(error) = written.as_ref().err().filter(|_| !self.textfile_failed) {
            (self.warn)(&format!("{}: {error}", cannot_write(folder)));
        }
        self.textfile_failed = written.is_err();
    }
}

fn cannot_write(folder: &Path) -> String {
    format!("cannot write the metrics into {}", folder.display())
}

/// A thread that ends once what is returned is dropped, or soon behind that.
fn spawn(name: &str, look: impl FnOnce(Receiver<()>) + Send + 'static) -> io::Result<Sender<()>> {
    let (looks, ended) = channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || look(ended)).map(|_| looks)
}

impl Answers {
    /// To who may read all.
    fn answer(&self, request: &Request) -> Answer {
        match request.path.as_str() {
            "/snapshot" => json(self.readings.snapshot()),
            "/front" => json(self.readings.front()),
            "/queues" => json(self.readings.queues()),
            "/status" => json(self.readings.status()),
            "/costs" => json(self.readings.costs()),
            "/notices" => json(self.readings.notices()),
            "/client" => self.answer_question(request, |asker, question| self.readings.explain(asker, question)),
            "/charges" => self.answer_question(request, |asker, question| self.readings.charges(asker, question)),
            _ => self.answer_anybody(request),
        }
    }

    /// Each question is another reading, so they are answered one at a time, and the next one has to wait.
    fn answer_question<Q: DeserializeOwned, T: Serialize>(
        &self,
        request: &Request,
        answer: impl Fn(Option<u32>, &Q) -> Option<Result<T>>,
    ) -> Answer {
        let asked = request.question.as_deref().unwrap_or_default();
        let question: Q = match serde_json::from_str(asked) {
            Ok(question) => question,
            Err(error) => return http::refuse(Status::Malformed, &format!("that is no question: {error}")),
        };
        match answer(request.asker, &question) {
            None => http::refuse(Status::Busy, "another question was asked just now; ask again in a moment"),
            Some(Err(error)) if error.kind() == ErrorKind::NotFound && self.readings.fief.installed() => {
                http::refuse(Status::Unanswerable, &error.to_string())
            }
            // root watches by itself
            Some(Err(error)) if error.kind() == ErrorKind::Exists => http::refuse(Status::Busy, &error.to_string()),
            Some(answer) => json(answer.and_then(|view| reading::json(&view).map(Arc::new))),
        }
    }

    fn answer_anybody(&self, request: &Request) -> Answer {
        if request.path != "/metrics" {
            return http::refuse(Status::NotFound, "there is /metrics here");
        }
        let format = if request.takes_openmetrics { Format::OpenMetrics } else { Format::Text };
        match self.page(format) {
            Ok(page) => http::answer(format.kind(), page),
            Err(error) => http::refuse(Status::Failed, &error.to_string()),
        }
    }

    /// The look for who listens reads the descriptors of all processes. No scrape waits for that. The journal looks too, and more
    /// seldom if that is costly.
    fn look(&self, ended: &Receiver<()>, warn: &dyn Fn(&str)) {
        let (mut failed, mut spent, mut pause) = (false, cpu_spent(), Duration::ZERO);
        loop {
            let age = self.readings.status_age().unwrap_or(Duration::MAX);
            let mut wait = pause.saturating_sub(age);
            if wait.is_zero() {
                failed = self.look_now(failed, warn);
                let before = std::mem::replace(&mut spent, cpu_spent());
                pause = LOOKS.max((spent - before) * TIMES_A_LOOK);
                wait = pause;
            }
            if !matches!(ended.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    /// Whether it failed.
    fn look_now(&self, failed: bool, warn: &dyn Fn(&str)) -> bool {
        if !self.readings.fief.in_force() {
            self.readings.forget_status();
            return false;
        }
        let error = self.readings.status_now().err().filter(|error| error.kind() != ErrorKind::NotFound);
        if let Some(error) = error.as_ref().filter(|_| !failed) {
            warn(&error.to_string());
        }
        error.is_some()
    }

    fn page(&self, format: Format) -> Result<Arc<Vec<u8>>> {
        // a policy that has gone is not told from memory
        match self.readings.fief.installed() {
            true => self.pages.get(format, || self.scrape()),
            false => pages::write(format, self.scrape()?).map(Arc::new),
        }
    }

    fn scrape(&self) -> Result<Scrape> {
        let read = self.readings.moment().and_then(|moment| Ok((Arc::new(moment), self.readings.status_lately()?)));
        let (in_force, status_age) = match read {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.readings.forget_status();
                (None, None)
            }
            read => {
                let (moment, (status, age)) = read?;
                (Some((moment, status)), Some(age))
            }
        };
        let failures = self.record_failures.load(Ordering::Relaxed);
        let record_failures = self.records.then_some(failures);
        let told = Arc::clone(&self.told);
        Ok(Scrape { in_force, status_age, series: self.series, told, record_failures })
    }
}

fn json(page: Result<Arc<Vec<u8>>>) -> Answer {
    match page {
        Ok(page) => http::answer("application/json", page),
        Err(error) => http::refuse(status_of(&error), &error.to_string()),
    }
}

fn status_of(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::NotFound => Status::Nothing,
        ErrorKind::Usage => Status::Malformed,
        _ => Status::Failed,
    }
}
