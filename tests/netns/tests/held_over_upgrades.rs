// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another build's programs take over while an application serves clients, holds containers in each way there is, and has threads bound
//! to them: every request is answered as the policy says, and every container stays what it was.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use fief::{Container, Place, Ring, State, Usage};
use fief_bpf::upgrade::{pretend_another_build, program_id};
use fief_control::ContainerView;
use fief_testkit::{Family, Process, read_until, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::{Child, SOON, connect_from, fork, inside, ms, receive, send, serve_in_turn, spin, used};

const UPGRADES: usize = 2;
/// Requests wait for the server, which does one at a time, and one path is refused.
const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
queue = { in-service = 1 }
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret"
refuse = "503"
"#;
const SERVED: &str = "HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nserved\n";
/// Of the work in a look; interrupts take their part of it.
const WORK: Duration = ms(5);
const CHARGED: Duration = Duration::from_micros(200);

/// A container that is the same one as long as it is held.
struct Held {
    container: Container,
    named: (u32, u32),
    had: Duration,
}

impl Held {
    fn new() -> Self {
        let container = Container::create().unwrap();
        let info = container.info().unwrap();
        Self { container, named: (info.id, info.generation), had: Duration::ZERO }
    }

    fn works(&self) {
        let _bound = self.container.bind().unwrap();
        spin(WORK);
    }

    /// With so many threads bound to it, if that is known, and at least so much more CPU time than at the last look.
    fn is_well(&mut self, what: &str, threads: Option<u32>, more: Duration) {
        let (info, has) = (self.container.info().unwrap(), used(&self.container));
        assert_eq!((info.id, info.generation, info.state), (self.named.0, self.named.1, State::Alive), "{what}");
        assert!(threads.is_none_or(|threads| threads == info.threads), "{what}: {info:?}");
        assert!(has >= self.had + more, "{what}: {has:?} after {:?}", self.had);
        self.had = has;
    }

    fn is_bound_here(&self, what: &str) {
        assert_eq!(fief::current(&self.container).unwrap(), self.named, "{what}");
    }
}

/// One that only a message holds, which nobody has received.
struct InFlight {
    named: (u32, u32),
    had: Duration,
    way: (UnixStream, UnixStream),
}

impl InFlight {
    fn new() -> Self {
        let held = Held::new();
        held.works();
        let way = UnixStream::pair().unwrap();
        send(&way.0, &held.container);
        Self { named: held.named, had: used(&held.container), way }
    }

    fn lands(self) {
        let container = Container::from_fd(receive(&self.way.1)).unwrap();
        let mut held = Held { container, named: self.named, had: self.had };
        held.is_well("in flight", Some(0), Duration::ZERO);
        held.works();
        held.is_well("landed", Some(0), CHARGED);
    }
}

/// A process that is bound for good, and works once it is told to end.
fn bound_process() -> (Held, Child, UnixStream) {
    let held = Held::new();
    let (end, mut ended) = UnixStream::pair().unwrap();
    let bound = {
        let _bound = held.container.bind().unwrap();
        fork(|| {
            assert_eq!(ended.read(&mut [0]).unwrap(), 1);
            held.is_bound_here("a forked process");
            spin(WORK);
            assert!(used(&held.container) > held.had + CHARGED);
        })
    };
    (held, bound, end)
}

/// A thread that is bound for good; it works each time that it is asked.
fn bound_thread() -> Sender<Sender<()>> {
    let (ask, asked) = channel::<Sender<()>>();
    std::thread::spawn(move || {
        let mut held = Held::new();
        held.container.bind_thread().unwrap();
        for reply in asked {
            held.is_bound_here("a thread");
            spin(WORK);
            held.is_well("of a thread", Some(1), CHARGED);
            reply.send(()).unwrap();
        }
    });
    ask
}

/// Serves each request, and its answer, for a container of its own, as the ring says.
fn serve(request: &Container, answer: &Container) {
    let mut ring = Ring::open().unwrap();
    let places = [ring.add(request).unwrap(), ring.add(answer).unwrap()];
    serve_in_turn("[::]:80".parse().unwrap(), |stream| {
        ring.bind(places[0]).unwrap();
        if stream.read(&mut [0; 1024]).is_ok_and(|length| length > 0) {
            ring.bind(places[1]).unwrap();
            let _ = stream.write_all(SERVED.as_bytes());
        }
        ring.bind(Place::HOME).unwrap();
        false
    });
}

fn say(words: &str) {
    println!("\nsays: {words}");
}

/// Says that it is well after each line that it reads; ends with its input.
fn application() {
    let (mut forked, bound, mut end) = bound_process();
    let flying = InFlight::new();
    let sleeps = bound_thread();
    let mut by_ring = [Held::new(), Held::new()];
    let [request, answer] = by_ring.each_ref().map(|held| held.container.duplicate().unwrap());
    std::thread::spawn(move || serve(&request, &answer));
    let mut by_descriptor: Vec<Held> = (0..100).map(|_| Held::new()).collect();
    say("holds");
    for line in std::io::stdin().lines() {
        line.unwrap();
        for held in &mut by_descriptor {
            held.is_well("held", Some(0), Duration::ZERO);
        }
        let last = by_descriptor.last_mut().unwrap();
        last.works();
        last.is_well("held and used", Some(0), CHARGED);
        last.container.set_weight(7).unwrap();
        assert_eq!(last.container.attributes().unwrap().weight, 7);
        assert_eq!(last.container.child().unwrap().info().unwrap().parent, Some(last.named.0));
        by_descriptor.rotate_right(1);
        for held in &mut by_ring {
            // requests were answered since the last time, perhaps one is being answered now
            held.is_well("in a ring", None, Duration::from_nanos(1));
        }
        forked.is_well("of a process", Some(1), Duration::ZERO);
        let (tell, told) = channel();
        sleeps.send(tell).unwrap();
        told.recv().unwrap();
        say("well");
    }
    end.write_all(b".").unwrap();
    bound.finish();
    flying.lands();
    say("done");
}

/// One request after the other, every second one for what the policy refuses; what was not answered as it should be.
fn ask(front: &Front, answered: &AtomicUsize, enough: &AtomicBool) -> Vec<String> {
    let mut wrong = Vec::new();
    let requests = [("/open", "served\n"), ("/secret", " 503 ")];
    for (path, expected) in requests.iter().cycle().take_while(|_| !enough.load(Ordering::Relaxed)) {
        let got = connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4))
            .map_err(|error| error.to_string())
            .and_then(|mut stream| {
                let asked = stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: server\r\n\r\n").as_bytes());
                asked.map_err(|error| error.to_string()).map(|()| read_until(&mut stream, expected))
            });
        match got {
            Ok(words) if words.contains(expected) => drop(answered.fetch_add(1, Ordering::Relaxed)),
            other => wrong.push(format!("{path}: {other:?}")),
        }
    }
    wrong
}

/// Of each counter the lower of two readings: one that the hypervisor takes the other CPU during counts that time too, for a moment.
fn at_least(earlier: &[ContainerView], mut later: Vec<ContainerView>) -> Vec<ContainerView> {
    for now in &mut later {
        if let Some(one) = earlier.iter().find(|one| (one.id, one.generation) == (now.id, now.generation)) {
            let (had, has) = (one.usage.counters(), now.usage.counters());
            now.usage = Usage::of_counters(std::array::from_fn(|n| had[n].min(has[n])));
        }
    }
    later
}

/// No counter of a container that is there before and after is less.
fn assert_kept(before: &[ContainerView], after: &[ContainerView]) {
    for one in before {
        let same = after.iter().find(|now| (now.id, now.generation) == (one.id, one.generation));
        let now = same.unwrap_or_else(|| panic!("{} ({}) is gone", one.path, one.id));
        let counters = one.usage.counters().into_iter().zip(now.usage.counters());
        assert!(counters.into_iter().all(|(had, has)| has >= had), "{}: {:?} {:?}", one.path, one.usage, now.usage);
    }
}

#[test]
fn what_an_application_holds_and_serves_goes_on_under_another_builds_programs() {
    if inside() {
        application();
        return;
    }
    if !ready() {
        return;
    }
    let front = Front::new(Door::Own, POLICY);
    let installation = front.installation();
    let name = "what_an_application_holds_and_serves_goes_on_under_another_builds_programs";
    let mut command = installation.part(Some(&installation.cgroup()), name, "application");
    front.topology.server.enter(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut application = Process::start(command).unwrap();
    let mut questions = application.child().stdin.take().unwrap();
    let mut told = BufReader::new(application.child().stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut hears = |words: &str| {
        let said = told.find_map(|line| line.strip_prefix("says: ").map(str::to_owned));
        assert_eq!(said.as_deref(), Some(words), "its own words are above");
    };
    hears("holds");
    wait_until(SOON, || connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)).is_ok())
        .unwrap();

    let (answered, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    let more_answers = || {
        let before = answered.load(Ordering::Relaxed);
        wait_until(SOON, || answered.load(Ordering::Relaxed) >= before + 20).unwrap();
    };
    let wrong = std::thread::scope(|scope| {
        // who asks ends also if something here fails
        let enough_at_last = Enough(&enough);
        let clients = [(); 2].map(|()| scope.spawn(|| ask(&front, &answered, &enough)));
        for _ in 0..UPGRADES {
            more_answers();
            writeln!(questions).unwrap();
            hears("well");
            let number = || program_id(installation.fief().pins(), "switch_charges").unwrap();
            let containers = || installation.fief().snapshot().unwrap().containers;
            let (old, earlier) = (number(), containers());
            more_answers(); // both CPUs have worked in between
            let before = at_least(&earlier, containers());
            pretend_another_build(installation.fief().pins()).unwrap();
            front.apply(POLICY).unwrap();
            assert_ne!(number(), old);
            assert_kept(&before, &containers());
        }
        more_answers();
        writeln!(questions).unwrap();
        hears("well");
        drop(enough_at_last);
        clients.map(|client| client.join().unwrap()).concat()
    });
    assert_eq!(wrong, [""; 0], "beside {answered:?} answers");
    drop(questions);
    hears("done");
    assert!(application.finish(SOON).unwrap().status.success());
}

struct Enough<'a>(&'a AtomicBool);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
