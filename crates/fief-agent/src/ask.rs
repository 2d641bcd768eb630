// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The other end of the agent's socket: how `fief` reads without root.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fief_control::{Charges, CostView, Explanation, Fief, FrontView, Question, QueueView, Recent, Snapshot, Status};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

use crate::http;

/// What an agent that works never takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two tries of a question.
const AGAIN: Duration = Duration::from_millis(50);

/// What is asked of a container's charges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChargeQuestion {
    /// Its path.
    pub container: String,
    /// How long it is watched for, from the question on; bounded by [`LONGEST_WATCH`].
    #[serde(deserialize_with = "bounded")]
    pub lasts: Duration,
}

/// One that watches keeps a worker of the agent, and everybody else from watching.
pub const LONGEST_WATCH: Duration = Duration::from_secs(5);

fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let lasts = Duration::deserialize(deserializer)?;
    if (Duration::from_millis(1)..=LONGEST_WATCH).contains(&lasts) {
        return Ok(lasts);
    }
    let most = LONGEST_WATCH.as_secs();
    Err(D::Error::custom(format!("a container is watched for 1 ms to {most} s at a time, not for {lasts:?}")))
}

/// The agent of an installation.
#[derive(Debug, Clone)]
pub struct Ask {
    socket: PathBuf,
}

/// Why the agent gave no answer.
#[derive(Debug)]
pub enum Refusal {
    /// No agent serves.
    Absent,
    /// This user may not read.
    Denied,
    /// Nothing is in force.
    Nothing,
    /// It cannot be asked so, with the reason.
    Wrong(String),
    /// There is no answer to it, with the reason.
    Unanswerable(String),
    /// Others ask.
    Busy,
    /// With its reason.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no agent serves"),
            Self::Denied => f.write_str("the agent serves root and the members of its group"),
            Self::Nothing => f.write_str("nothing is in force"),
            Self::Busy => f.write_str("the agent answers one question at a time, and others ask too; try again"),
            Self::Wrong(why) | Self::Unanswerable(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl Ask {
    /// Whether it serves is found out by asking.
    pub fn of(fief: &Fief) -> Self {
        Self { socket: fief.agent_socket() }
    }

    /// Where it would serve.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What `usage`, `ls` and `top` show.
    pub fn snapshot(&self) -> Result<Snapshot, Refusal> {
        self.get("/snapshot")
    }

    /// What `explain` counts.
    pub fn front(&self) -> Result<FrontView, Refusal> {
        self.get("/front")
    }

    /// What `top` shows of requests that wait.
    pub fn queues(&self) -> Result<Vec<QueueView>, Refusal> {
        self.get("/queues")
    }

    /// What `status` tells.
    pub fn status(&self) -> Result<Status, Refusal> {
        self.get("/status")
    }

    /// What `explain --costliest` subtracts; that is counted from now on.
    pub fn costs(&self) -> Result<CostView, Refusal> {
        self.get("/costs")
    }

    /// What `explain --follow` tells one after the other.
    pub fn recent(&self) -> Result<Recent, Refusal> {
        self.get("/notices")
    }

    /// What `explain --from` tells.
    pub fn explain(&self, question: &Question) -> Result<Explanation, Refusal> {
        self.answer("/client", question)
    }

    /// What `explain --charge` tells.
    pub fn charges(&self, question: &ChargeQuestion) -> Result<Charges, Refusal> {
        self.answer("/charges", question)
    }

    /// Of a question, for which others may have to be waited for.
    fn answer<T: DeserializeOwned>(&self, path: &str, question: &impl Serialize) -> Result<T, Refusal> {
        let json = serde_json::to_string(question).map_err(|error| Refusal::Failed(error.to_string()))?;
        let until = Instant::now() + PATIENCE;
        loop {
            match self.read(path, &format!("Question: {json}\r\n")) {
                Err(Refusal::Busy) if Instant::now() < until => std::thread::sleep(AGAIN),
                answer => return answer,
            }
        }
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Refusal> {
        self.read(path, "")
    }

    fn read<T: DeserializeOwned>(&self, path: &str, headers: &str) -> Result<T, Refusal> {
        let broken = |error: io::Error| Refusal::Failed(format!("the agent did not answer: {error}"));
        let mut stream = UnixStream::connect(&self.socket).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Refusal::Absent,
            io::ErrorKind::PermissionDenied => Refusal::Denied,
            _ => broken(error),
        })?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
        // the end of the connection is the end of the answer
        // an agent that refuses has closed already, and its answer can be read all the same
        let sent = stream.write_all(format!("GET {path} HTTP/1.0\r\n{headers}\r\n").as_bytes());
        let mut answer = BufReader::new(stream);
        let mut line = String::new();
        answer.read_line(&mut line).map_err(broken)?;
        if line.is_empty() {
            return Err(broken(sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())));
        }
        let status = http::Status::of_line(&line);
        while !matches!(line.as_str(), "\r\n" | "") {
            line.clear();
            answer.read_line(&mut line).map_err(broken)?;
        }
        match status {
            Some(http::Status::Fine) => serde_json::from_reader(answer).map_err(|error| {
                Refusal::Failed(format!(
                    "the agent's answer cannot be read ({error}); if it is of another version, restart it"
                ))
            }),
            Some(http::Status::NotAllowed) => Err(Refusal::Denied),
            Some(http::Status::Nothing) => Err(Refusal::Nothing),
            Some(http::Status::NotFound) => Err(Refusal::Failed(
                "the agent is of another version and does not know what is asked; restart it".into(),
            )),
            status => {
                let mut why = String::new();
                answer.take(4096).read_to_string(&mut why).map_err(broken)?;
                let why = why.trim_end();
                Err(match status {
                    Some(http::Status::Malformed) => Refusal::Wrong(why.to_owned()),
                    Some(http::Status::Unanswerable) => Refusal::Unanswerable(why.to_owned()),
                    Some(http::Status::Busy) => Refusal::Busy,
                    _ => Refusal::Failed(format!("the agent failed: {why}")),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_watches_for_long() {
        let read = |lasts: Duration| {
            let asked = ChargeQuestion { container: "shop".into(), lasts };
            let text = serde_json::to_string(&asked).expect("texts and numbers");
            serde_json::from_str::<ChargeQuestion>(&text).map(|read| read == asked).map_err(|error| error.to_string())
        };
        assert_eq!(read(Duration::from_secs(1)), Ok(true));
        assert_eq!(read(LONGEST_WATCH), Ok(true));
        for wrong in [Duration::ZERO, LONGEST_WATCH + Duration::from_nanos(1), Duration::MAX] {
            assert!(read(wrong).is_err_and(|error| error.contains("is watched for")), "{wrong:?}");
        }
    }
}
