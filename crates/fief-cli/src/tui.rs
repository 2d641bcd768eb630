// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief top`: from two snapshots to lines (`rows`, `column`), what keys do to them (`app`), how they look (`screen`, and
//! `plain` without a terminal), and the terminal itself (`terminal`). All but the last are pure.

pub mod app;
pub mod column;
pub mod plain;
pub mod rows;
pub mod screen;
pub mod terminal;
