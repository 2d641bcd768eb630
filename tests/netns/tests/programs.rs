// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that servers start for their clients (CGI): each has a container of its own below the one that the policy names, and
//! is held there with all that it forks.

#[path = "programs/site.rs"]
mod site;

use std::time::Duration;

use fief_testkit::{Client, SchedStat, lives, wait_until};
use fief_tests_netns::{SOON, cpu_group, has_its_tenth};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use site::{Server, Site};

/// For what others on the machine can hold up.
const AT_LAST: Duration = Duration::from_secs(120);

const LIMITED: &str = "[container.site]\nprograms = \"site/cgi\"\n[container.\"site/cgi\"]\ncpu.limit = \"10%\"\n";
const FREE: &str = "[container.site]\nprograms = \"site/cgi\"\n[container.\"site/cgi\"]\n";

fn end(pid: u32) {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
    wait_until(SOON, || !lives(pid)).unwrap();
}

fn each_request_has_a_container_at(server: Server) {
    let Some(site) = Site::new(server, FREE) else { return };
    let before = site.used("site");
    let streams = [site.ask("/burn.cgi"), site.ask("/burn.cgi")];
    let pids = site.programs(2);
    let own = || site.containers("site/cgi/");
    wait_until(AT_LAST, || own().len() == 2 && own().iter().all(|(_, ns)| *ns > 100_000_000)).unwrap();
    let names: Vec<String> = own().into_iter().map(|(path, _)| path).collect();
    for pid in &pids {
        assert!(names.contains(&format!("site/cgi/burn.cgi-{pid}")), "{pid} in {names:?}");
    }
    let (server, used) = (site.used("site") - before, own().iter().map(|(_, ns)| ns).sum::<u64>());
    assert!(server < used / 2, "the server was charged {server} ns, its programs {used}");
    site.stop_programs();
    streams.into_iter().for_each(site::is_answered);
    // the containers end with their programs, and what they used is their parent's
    wait_until(SOON, || own().is_empty()).unwrap_or_else(|_| panic!("left: {:?}", own()));
    assert!(site.used("site/cgi") >= used);
    site.end();
}

#[test]
fn lighttpd_each_request_has_a_container_that_is_charged_and_ends_with_its_program() {
    each_request_has_a_container_at(Server::Lighttpd);
}

#[test]
fn apache_each_request_has_a_container_that_is_charged_and_ends_with_its_program() {
    each_request_has_a_container_at(Server::ApacheCgi);
}

/// The process that starts its programs has no connection of a client.
#[test]
fn apache_with_cgid_each_request_has_a_container_too() {
    each_request_has_a_container_at(Server::ApacheCgid);
}

/// So has the one that speaks FastCGI with the server.
#[test]
fn nginx_with_fcgiwrap_each_request_has_a_container_too() {
    each_request_has_a_container_at(Server::Fcgiwrap);
}

/// A tenant names the files of its site, and a terminal obeys what begins with U+009B.
#[test]
fn a_container_has_no_byte_of_its_programs_name_that_a_terminal_obeys() {
    let Some(site) = Site::new(Server::Lighttpd, FREE) else { return };
    let stream = site.ask("/a%C2%9B8m.cgi");
    let pids = site.programs(1);
    let own = || site.containers("site/cgi/");
    wait_until(AT_LAST, || own().len() == 1).unwrap();
    assert_eq!(own()[0].0, format!("site/cgi/a??8m.cgi-{}", pids[0]));
    site.stop_programs();
    site::is_answered(stream);
    site.end();
}

fn a_back_end_works_for_whoever_asks_it(server: Server, path: &str) {
    let policy = "version = 1\n[container.site]\n[container.\"site/gold\"]\n[container.\"site/tin\"]\n\
                  [listener.web]\naddress = \"0.0.0.0:8080\"\nclasses = \"shared\"\n\
                  [[listener.web.client]]\nfrom = [\"10.77.1.0/24\"]\ncontainer = \"site/gold\"\n\
                  [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"site/tin\"\n";
    let Some(site) = Site::under(server, policy) else { return };
    let used = || ["site", "site/gold", "site/tin"].map(|path| site.used(path) / 1_000_000);
    // the first ones may find it starting
    wait_until(SOON, || site::answers(site.ask_as(Client::Low, path))).unwrap();
    let before = used();
    for class in [Client::High, Client::Low, Client::High, Client::High, Client::Low] {
        site::is_answered(site.ask_as(class, path));
    }
    let [home, gold, tin] = [0, 1, 2].map(|n| used()[n] - before[n]);
    // of what the back end's clock says, nobody is charged what the hypervisor stole
    assert!((120..380).contains(&gold) && (80..280).contains(&tin) && home < 50, "{home} {gold} {tin} ms");
    site.end();
}

#[test]
fn a_persistent_back_end_works_for_whoever_asks_it_over_a_unix_socket() {
    a_back_end_works_for_whoever_asks_it(Server::BackEnd, "/back");
}

#[test]
fn php_fpm_works_for_whoever_asks_it_over_a_unix_socket() {
    a_back_end_works_for_whoever_asks_it(Server::PhpFpm, "/back.php");
}

#[test]
fn a_limit_holds_all_programs_together_with_what_they_fork_and_leave_behind() {
    let Some(site) = Site::new(Server::Lighttpd, LIMITED) else { return };
    let _streams = [site.ask("/burn.cgi"), site.ask("/family.cgi")];
    // family.cgi is three: itself, a child, and one that it left behind in a session of its own
    let pids = site.programs(4);
    wait_until(SOON, || pids.iter().all(|pid| cpu_group(*pid).ends_with("/@site/@cgi/programs")))
        .unwrap_or_else(|_| panic!("{:?}", pids.iter().map(|pid| cpu_group(*pid)).collect::<Vec<_>>()));
    assert!(cpu_group(site.server()).ends_with("/@site/own"), "{}", cpu_group(site.server()));
    let ran = || pids.iter().map(|pid| SchedStat::of(*pid).unwrap_or_default().ran).sum::<Duration>();
    let machine = site.fief.snapshot().unwrap().cpus;
    has_its_tenth(machine, AT_LAST, ran);
    assert_eq!(site.fief.status().unwrap().problems, [""; 0]);
    site.stop_programs();
    site.end();
}

#[test]
fn a_program_that_outlives_its_request_keeps_its_container_until_it_is_killed() {
    let Some(site) = Site::new(Server::Lighttpd, LIMITED) else { return };
    site::is_answered(site.ask("/leave.cgi"));
    let [left] = site.programs(1)[..] else { panic!("one") };
    let own = || site.containers("site/cgi/leave.cgi-");
    wait_until(AT_LAST, || own().iter().any(|(_, ns)| *ns > 50_000_000)).unwrap();
    assert_eq!(own().len(), 1, "{:?}", own());
    wait_until(SOON, || cpu_group(left).ends_with("/@site/@cgi/programs")).unwrap();
    end(left);
    wait_until(SOON, || own().is_empty()).unwrap_or_else(|_| panic!("left: {:?}", own()));
    site.end();
}

#[test]
fn a_program_that_is_killed_a_server_that_starts_anew_and_one_that_is_killed() {
    let Some(site) = Site::new(Server::Lighttpd, FREE) else { return };
    let _stream = site.ask("/burn.cgi");
    let own = || site.containers("site/cgi/");
    wait_until(SOON, || own().len() == 1).unwrap();
    end(site.programs(1)[0]);
    wait_until(SOON, || own().is_empty()).unwrap_or_else(|_| panic!("left: {:?}", own()));

    // it reads its configuration again
    site.signal(Signal::SIGUSR1);
    site.starts(2);
    let _stream = site.ask("/burn.cgi");
    let pids = site.programs(1);
    wait_until(AT_LAST, || own().iter().any(|(_, ns)| *ns > 50_000_000)).unwrap();

    // its program goes on, and with the policy goes what held it
    end(site.server());
    site.stop_programs();
    wait_until(SOON, || pids.iter().all(|pid| !lives(*pid))).unwrap();
    site.goes();
}

#[test]
fn without_programs_in_the_policy_a_program_is_its_class_as_ever() {
    let Some(site) = Site::new(Server::Lighttpd, "[container.site]\ncpu.limit = \"90%\"\n") else { return };
    let _stream = site.ask("/burn.cgi");
    let pids = site.programs(1);
    let before = site.used("site");
    wait_until(AT_LAST, || site.used("site") > before + 200_000_000).unwrap();
    assert_eq!(site.containers("site/"), []);
    assert!(cpu_group(pids[0]).ends_with("/@site/own"), "{}", cpu_group(pids[0]));
    site.stop_programs();
    site.end();
}

/// What was not started for a client is no program: here, a server that a script starts.
#[test]
fn what_a_server_starts_for_nobody_stays_at_home() {
    let Some(site) = Site::new(Server::Script, FREE) else { return };
    assert_eq!(site.containers("site/cgi/"), []);
    let _stream = site.ask("/burn.cgi");
    site.programs(1);
    wait_until(AT_LAST, || site.containers("site/cgi/").len() == 1).unwrap();
    site.stop_programs();
    site.end();
}

#[test]
fn a_mover_that_was_killed_is_missed_by_status_and_started_by_the_next_apply() {
    let Some(site) = Site::new(Server::Lighttpd, LIMITED) else { return };
    end(site.mover().expect("it runs"));
    let problems = site.fief.status().unwrap().problems;
    assert!(problems.iter().any(|one| one.contains("the process that moves them has ended")), "{problems:?}");
    let _stream = site.ask("/burn.cgi");
    let pids = site.programs(1);
    // it is charged, and its server serves
    wait_until(AT_LAST, || site.containers("site/cgi/").iter().any(|(_, ns)| *ns > 50_000_000)).unwrap();
    site::is_answered(site.ask("/1k"));
    site.apply(LIMITED);
    assert!(site.mover().is_some());
    // who was told of while nobody listened is moved now
    wait_until(SOON, || cpu_group(pids[0]).ends_with("/@site/@cgi/programs")).unwrap();
    site.stop_programs();
    site.end();
}
