// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a container used, and what it did together with all below it.

use crate::output::{Align, Table};
use crate::quantity::{bytes, count, duration};
use crate::record::{Place, Usage};

pub fn table(place: &Place, own: &Usage, all: &Usage) -> Table {
    let (own_split, all_split) = (own.split(place.id), all.split(place.id));
    let mut table = Table::new(&[("USED", Align::Left), ("ITSELF", Align::Right), ("WITH ALL BELOW", Align::Right)]);
    type Shown = fn(u64) -> String;
    let rows: [(&str, [u64; 2], Shown); 16] = [
        ("CPU", [own.cpu_ns(), all.cpu_ns()], duration),
        ("  threads", [own.thread_ns, all.thread_ns], duration),
        ("    user mode", [own_split.user_ns, all_split.user_ns], duration),
        ("    kernel", [own_split.system_ns, all_split.system_ns], duration),
        ("  receiving packets", [own.receive_ns, all.receive_ns], duration),
        ("packets in", [own.packets_in, all.packets_in], count),
        ("bytes in", [own.bytes_in, all.bytes_in], bytes),
        ("packets out", [own.packets_out, all.packets_out], count),
        ("bytes out", [own.bytes_out, all.bytes_out], bytes),
        ("disk bytes read", [own.disk_read_bytes, all.disk_read_bytes], bytes),
        ("disk bytes written", [own.disk_write_bytes, all.disk_write_bytes], bytes),
        ("minor faults", [own.minor_faults, all.minor_faults], count),
        ("major faults", [own.major_faults, all.major_faults], count),
        ("SYNs seen", [own.syns_seen, all.syns_seen], count),
        ("SYNs dropped", [own.syns_dropped, all.syns_dropped], count),
        ("connections accepted", [own.accepts, all.accepts], count),
    ];
    for (name, values, shown) in rows {
        let [own, all] = values.map(shown);
        // Threads that nobody manages are not sampled.
        let is_unknown = name.starts_with("    ") && own_split.undivided_ns > 0;
        let dash = || "-".to_owned();
        table.push(if is_unknown { [name.into(), dash(), dash()] } else { [name.into(), own, all] });
    }
    table
}
