// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who leaves a container leaves its reference with the CPU, and nobody can tell but by the time that it takes.

use std::sync::{Barrier, Mutex};

use fief::Container;
use fief_testkit::{cpus, pin};
use fief_tests_netns::{in_unit, left, record, unnamed};

/// Binds and unbinds in a thread on each CPU, which then waits until `then` is done.
fn after_work_on_every_cpu(container: &Container, then: impl FnOnce() + Send) {
    let all = cpus();
    let (worked, done) = (Barrier::new(all.len() + 1), Barrier::new(all.len() + 1));
    std::thread::scope(|scope| {
        for &cpu in &all {
            let own = container.duplicate().unwrap();
            let (worked, done) = (&worked, &done);
            scope.spawn(move || {
                pin(0, cpu).unwrap();
                own.bind_thread().unwrap();
                fief::unbind(&own).unwrap();
                drop(own);
                worked.wait();
                done.wait();
            });
        }
        worked.wait();
        then();
        done.wait();
    });
}

#[test]
fn a_thread_that_comes_back_writes_nothing_that_all_cpus_share() {
    in_unit("a_thread_that_comes_back_writes_nothing_that_all_cpus_share", || {
        pin(0, 0).unwrap();
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        let refs = || record(id).unwrap().refs;
        container.bind_thread().unwrap();
        let bound = refs();
        fief::unbind(&container).unwrap();
        assert_eq!(refs(), bound);
        container.bind_thread().unwrap();
        assert_eq!(refs(), bound);
        fief::unbind(&container).unwrap();
        drop(container.bind().unwrap());
        assert_eq!(refs(), bound);
    });
}

#[test]
fn a_container_ends_with_its_last_descriptor_though_every_cpu_had_it() {
    in_unit("a_container_ends_with_its_last_descriptor_though_every_cpu_had_it", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        after_work_on_every_cpu(&container.duplicate().unwrap(), move || {
            assert!(record(id).is_some());
            drop(container);
        });
        assert!(record(id).is_none(), "{}", left());
    });
}

#[test]
fn a_container_without_descriptors_ends_with_its_last_thread() {
    in_unit("a_container_without_descriptors_ends_with_its_last_thread", || {
        let other = Container::create().unwrap();
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        container.bind_thread().unwrap();
        drop(container);
        assert!(record(id).is_some());
        fief::unbind(&other).unwrap();
        assert!(record(id).is_none(), "{}", left());
    });
}

#[test]
fn more_containers_in_turn_than_a_cpu_keeps_all_end() {
    in_unit("more_containers_in_turn_than_a_cpu_keeps_all_end", || {
        let before = unnamed();
        let all: Vec<_> = (0..3 * fief_bpf::abi::FIEF_KEPT).map(|_| Container::create().unwrap()).collect();
        for container in all.iter().chain(&all) {
            container.bind_thread().unwrap();
            fief::unbind(container).unwrap();
        }
        drop(all);
        assert_eq!(unnamed(), before, "{}", left());
    });
}

#[test]
fn descriptors_that_close_while_other_threads_leave_end_their_container() {
    in_unit("descriptors_that_close_while_other_threads_leave_end_their_container", || {
        let all = cpus();
        let turn = Barrier::new(all.len());
        let shared = Mutex::new(None::<Container>);
        let alive = Mutex::new(Vec::new());
        let rounds = |cpu: usize, leads: bool| {
            pin(0, cpu).unwrap();
            for round in 0..2000 {
                if leads {
                    *shared.lock().unwrap() = Some(Container::create().unwrap());
                }
                turn.wait();
                let own = shared.lock().unwrap().as_ref().unwrap().duplicate().unwrap();
                let id = own.info().unwrap().id;
                turn.wait();
                if leads {
                    drop(shared.lock().unwrap().take());
                }
                own.bind_thread().unwrap();
                (0..round * (cpu + 1) % 97).for_each(|_| std::hint::spin_loop());
                fief::unbind(&own).unwrap();
                drop(own);
                turn.wait();
                // nobody may leave the others alone at the barrier
                if leads && record(id).is_some() {
                    alive.lock().unwrap().push(round);
                }
            }
        };
        std::thread::scope(|scope| {
            for (n, &cpu) in all.iter().enumerate() {
                let rounds = &rounds;
                scope.spawn(move || rounds(cpu, n == 0));
            }
        });
        assert!(alive.lock().unwrap().is_empty(), "{alive:?}:{}", left());
    });
}
