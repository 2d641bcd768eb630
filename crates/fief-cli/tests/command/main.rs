// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command as a user has it: what it prints where, its exit codes, and what is in force afterwards.

mod agent;
mod board;
mod boot;
mod executed;
mod full_disk;
mod given_back;
mod homes;
mod in_force;
mod interface;
mod journal;
mod lab;
mod life;
mod mounted;
mod mounted_users;
mod odd_names;
mod package;
mod place;
mod record;
mod run;
mod started;
mod system_calls;
mod unheard;
mod unit;
mod without_root;
