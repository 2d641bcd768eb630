// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command as a user has it: what it prints where, its exit codes, and what is in force afterwards.

mod in_force;
mod lab;
mod life;
mod place;
mod started;
mod without_root;
