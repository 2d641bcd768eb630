// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header and the module that packages bring: they are right about every record, and a program in C and one in Python work by them.

use std::path::{Path, PathBuf};
use std::process::Command;

use fief_testkit::{Feature, require, require_if};

use crate::place::Place;
use crate::started::{Ended, fief};

/// What both say of themselves, as the library in Rust has it.
fn of_rust() -> Vec<u64> {
    use fief::abi;
    vec![
        size_of::<abi::fief_usage>() as u64,
        size_of::<abi::fief_attributes>() as u64,
        size_of::<abi::fief_info>() as u64,
        size_of::<abi::fief_drops>() as u64,
        size_of::<abi::fief_filter>() as u64,
        size_of::<abi::fief_create>() as u64,
        size_of::<abi::fief_bind>() as u64,
        size_of::<abi::fief_set_attribute>() as u64,
        size_of::<abi::fief_ring_page>() as u64,
        size_of::<abi::fief_ring_open>() as u64,
        std::mem::offset_of!(abi::fief_info, name) as u64,
        std::mem::offset_of!(abi::fief_drops, reason) as u64,
        std::mem::offset_of!(abi::fief_usage, accepts) as u64,
        std::mem::offset_of!(abi::fief_ring_page, records) as u64,
        abi::FIEF_RING_RECORDS.into(),
        abi::FIEF_SOL.into(),
        abi::FIEF_DROPS.into(),
        abi::FIEF_RENEW.into(),
        abi::FIEF_BANNED.into(),
        abi::FIEF_REASONS.into(),
        abi::FIEF_ATTR_DESCENDANTS_MAX.into(),
        abi::FIEF_RIGHTS_ALL.into(),
        abi::FIEF_NO_ID.into(),
    ]
}

/// A program that prints the same; and one that works in a container of its own and prints what that used, or why it does not.
const C: &str = r#"
#include <fief.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

static void records(void)
{
	unsigned long all[] = {
		sizeof(struct fief_usage), sizeof(struct fief_attributes), sizeof(struct fief_info), sizeof(struct fief_drops),
		sizeof(struct fief_filter), sizeof(struct fief_create), sizeof(struct fief_bind), sizeof(struct fief_set_attribute),
		sizeof(struct fief_ring_page), sizeof(struct fief_ring_open),
		offsetof(struct fief_info, name), offsetof(struct fief_drops, reason), offsetof(struct fief_usage, accepts),
		offsetof(struct fief_ring_page, records), FIEF_RING_RECORDS,
		FIEF_SOL, FIEF_DROPS, FIEF_RENEW, FIEF_BANNED, FIEF_REASONS, FIEF_ATTR_DESCENDANTS_MAX, FIEF_RIGHTS_ALL, FIEF_NO_ID,
	};
	unsigned int at;

	for (at = 0; at < sizeof(all) / sizeof(all[0]); at++)
		printf("%lu\n", all[at]);
}

static __u64 now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (__u64)now.tv_sec * 1000000000 + (__u64)now.tv_nsec;
}

/* Uses so much CPU. What passes at once between two looks at the clock was the hypervisor's, of which nobody is charged. */
static void work(clock_t left)
{
	const clock_t most = CLOCKS_PER_SEC / 10000;
	clock_t last = clock(), now;

	while (left > 0) {
		now = clock();
		left -= now - last < most ? now - last : most;
		last = now;
	}
}

static int by_ring(int gold)
{
	struct fief_ring_page *page = (struct fief_ring_page *)mmap(NULL, FIEF_RING_ALIGN, PROT_READ | PROT_WRITE,
								    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct fief_usage usage;
	clock_t ran;

	if (fief_ring_begin(gold, page, now_ns) || fief_ring_put(gold, 1))
		return -1;
	fief_ring_bind(page, 1, now_ns());
	work(CLOCKS_PER_SEC / 20);
	fief_ring_bind(page, FIEF_RING_HOME, now_ns());
	ran = clock();
	work(CLOCKS_PER_SEC / 10); // home's
	if (!fief_ring_put(gold, FIEF_RING_HOME))
		return -1;
	if (fief_ring_flush(gold) || fief_ring_clear(gold, 1) || fief_ring_end(gold) || fief_container_usage(gold, &usage))
		return -1;
	return usage.thread_ns > 70000000 && usage.thread_ns < (__u64)ran * 1000 + 30000000;
}

int main(int count, char **words)
{
	struct fief_attributes attributes;
	struct fief_usage usage;
	struct fief_info info;
	int gold;
	(void)words;

	if (count > 1) {
		records();
		return 0;
	}
	gold = fief_container_create(0, 0);
	if (gold < 0) {
		printf("%s\n", errno == ENOPROTOOPT ? "not managed" : strerror(errno));
		return 0;
	}
	if (fief_container_create(0, 10001) != -1 || errno != EINVAL || fief_container_create(2, 0) != -1 || errno != EINVAL)
		return 3;
	if (fief_container_set_name(gold, "gold-c") || fief_container_set(gold, FIEF_ATTR_WEIGHT, 7))
		return 1;
	if (fief_container_set_name(gold, "a-name-that-has-more-than-31-bytes") != -1 || errno != EINVAL)
		return 4;
	if (fief_enter(gold))
		return 1;
	work(CLOCKS_PER_SEC / 20);
	if (fief_leave(gold) || fief_container_usage(gold, &usage) || fief_container_info(gold, &info) ||
	    fief_container_attributes(gold, &attributes))
		return 2;
	printf("%s %u %d\n", info.name, attributes.weight, usage.thread_ns > 20000000);
	fprintf(stderr, "by the ring: %d\n", by_ring(gold));
	return 0;
}
"#;

const PYTHON: &str = r#"
import ctypes, errno, sys, time
import fief
from fief import *
if len(sys.argv) > 1:
    for record in (fief_usage, fief_attributes, fief_info, fief_drops, fief_filter, fief_create, fief_bind, fief_set_attribute,
                   fief_ring_page, fief_ring_open):
        print(ctypes.sizeof(record))
    print(fief_info.name.offset, fief_drops.reason.offset, fief_usage.accepts.offset, sep="\n")
    print(fief_ring_page.records.offset, FIEF_RING_RECORDS, sep="\n")
    print(FIEF_SOL, FIEF_DROPS, FIEF_RENEW, FIEF_BANNED, FIEF_REASONS, FIEF_ATTR_DESCENDANTS_MAX, FIEF_RIGHTS_ALL, FIEF_NO_ID, sep="\n")
    sys.exit()
try:
    gold = fief.Container(name="gold-python")
except fief.NotManaged:
    print("not managed")
    sys.exit()
gold.set(FIEF_ATTR_WEIGHT, 7)
def work(left):
    last = time.thread_time()
    while left > 0:
        now = time.thread_time()
        left -= min(now - last, 0.0001)
        last = now
def why_not(call):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.EINVAL, error
        return str(error)
assert "a weight is 1 to 10000" in why_not(lambda: fief.Container(weight=10001))
for name in ("x" * 32, "a/b", "a\0b", ""):
    assert "1 to 31 bytes" in why_not(lambda: gold.set_name(name))
# a fourth one gives back what the thread might do before
four = [fief.Container() for _ in range(4)]
with four[0].bind(), four[1].bind(), four[2].bind():
    with four[3].bind():
        pass
    with fief.Container() as made:
        made.renew()
with gold.bind():
    with fief.open_current() as current:
        assert current.info().self.id == gold.info().self.id
    work(0.05)
assert fief.open_current().info().self.id != gold.info().self.id
print(gold.info().name.decode(), gold.attributes().weight, int(gold.usage().thread_ns > 20_000_000))
"#;

/// The interface in a folder, and the two programs as commands that run there.
struct Programs {
    folder: tempfile::TempDir,
}

impl Programs {
    fn new() -> Option<Self> {
        let compiles = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
        if !require(Feature::Python) || !require_if("a C compiler", compiles, false) {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let written = fief().arg("interface").arg(folder.path()).args(["--prefix", "/opt/fief"]).ends();
        assert_eq!(written.code, 0, "{written:?}");
        std::fs::write(folder.path().join("program.c"), C).expect("written");
        std::fs::write(folder.path().join("program.py"), PYTHON).expect("written");
        let programs = Self { folder };
        programs.compiles(&["cc", "-std=c99", "-pedantic", "-Wshadow"], "program.c");
        Some(programs)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn compiles(&self, compiler: &[&str], source: &str) {
        let mut command = Command::new(compiler[0]);
        command
            .args(&compiler[1..])
            .args(["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I"])
            .arg(self.folder.path());
        let done =
            Ended::from(command.arg("-o").arg(self.at("program")).arg(self.at(source)).output().expect("it starts"));
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    }

    fn commands(&self) -> [Vec<String>; 2] {
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        [vec![text(&self.at("program"))], vec!["python3".to_owned(), "-B".to_owned(), text(&self.at("program.py"))]]
    }
}

#[test]
fn both_know_every_record_as_the_kernel_side_has_it() {
    let Some(programs) = Programs::new() else { return };
    for words in programs.commands() {
        let said = Ended::from(Command::new(&words[0]).args(&words[1..]).arg("records").output().expect("it starts"));
        let numbers: Vec<u64> = said.stdout.lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(numbers, of_rust(), "{words:?} {said:?}");
    }
    let config = std::fs::read_to_string(programs.at("fief.pc")).expect("written");
    assert!(config.contains("\nprefix=/opt/fief\n") && config.contains(env!("CARGO_PKG_VERSION")), "{config}");
}

#[test]
fn the_header_is_one_of_cpp_too() {
    let Some(programs) = Programs::new() else { return };
    if !require_if("a C++ compiler", Command::new("c++").arg("--version").output().is_ok(), false) {
        return;
    }
    programs.compiles(&["c++", "-x", "c++"], "program.c");
}

#[test]
fn programs_of_both_work_in_a_container_of_their_own_and_are_told_where_nobody_manages_them() {
    let (Some(place), Some(programs)) = (Place::new(), Programs::new()) else { return };
    place.apply();
    for (words, name) in programs.commands().into_iter().zip(["gold-c", "gold-python"]) {
        let alone = Ended::from(Command::new(&words[0]).args(&words[1..]).output().expect("it starts"));
        assert_eq!((alone.code, alone.stdout.as_str()), (0, "not managed\n"), "{alone:?}");
        let managed = place.fief().args(["exec", "--container", "shop", "--"]).args(&words).ends();
        assert_eq!((managed.code, managed.stdout), (0, format!("{name} 7 1\n")), "{}", managed.stderr);
        assert_eq!(managed.stderr.contains("by the ring: 1\n"), name == "gold-c", "{}", managed.stderr);
    }
}
