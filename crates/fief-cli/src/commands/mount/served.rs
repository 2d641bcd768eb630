// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers the kernel's requests for files. Nothing is remembered but the pages of open files: what is asked for is read then.

use std::collections::HashMap;
use std::error::Error as _;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenAccMode,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::caller::{self, Caller};
use super::changed::{Turn, opened_by};
use super::folders::Lister;
use super::inode::{File, Inode};
use super::page;
use super::readers::Readers;
use fief_control::{ErrorKind, Fief, Holder};

/// The kernel asks again each time: a container ends without telling anybody.
const FRESH: Duration = Duration::ZERO;

/// By others than root: a page is as large as a page of memory at most, and they are not to take all of it.
const MOST_OPEN: usize = 16_384;

pub type Result<T> = std::result::Result<T, Errno>;

pub struct Served {
    pub(super) fief: Fief,
    readers: Readers,
    pub(super) lister: Lister,
    pages: Mutex<HashMap<u64, String>>,
    next: AtomicU64,
    pub(super) turn: Turn,
    /// Of two users that make the same name one does.
    pub(super) named: Mutex<()>,
}

/// A folder or file, and whose its container is.
pub type Present = (Inode, Holder);

impl Served {
    pub fn new(fief: Fief, readers: Readers) -> Self {
        let lister = Lister::new(fief.clone());
        let (pages, next) = (Mutex::new(HashMap::new()), AtomicU64::new(1));
        Self { fief, readers, lister, pages, next, turn: Turn::default(), named: Mutex::new(()) }
    }

    /// The folder or file of that number, if its container has not ended.
    pub(super) fn present(&self, number: INodeNo) -> Result<Present> {
        let inode = Inode::of(number).ok_or(Errno::ENOENT)?;
        match inode {
            Inode::Top => Ok((inode, Holder::Fief)),
            Inode::Of(container, _) => match self.lister.holder(container).map_err(errno)? {
                Some(holder) => Ok((inode, holder)),
                None => Err(Errno::ENOENT),
            },
        }
    }

    pub(super) fn found(&self, parent: INodeNo, name: &OsStr) -> Result<Present> {
        // no container of ours has a name that is no text
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        match (self.present(parent)?, File::named(name)) {
            ((Inode::Of(container, File::Folder), holder), Some(file)) => Ok((Inode::Of(container, file), holder)),
            ((inode, _), _) => {
                let found = self.lister.find(slot(inode)?, name).map_err(errno)?.ok_or(Errno::ENOENT)?;
                self.present(Inode::Of(found, File::Folder).number())
            }
        }
    }

    fn attributes(&self, (inode, holder): Present) -> FileAttr {
        self.readers.attributes(inode, holder)
    }

    pub(super) fn caller(&self, request: &Request) -> Result<Caller> {
        caller::of(request, &self.readers).ok_or(Errno::EACCES)
    }

    fn written(&self, number: INodeNo) -> Result<String> {
        let Some(Inode::Of(container, file @ (File::Status | File::Usage))) = Inode::of(number) else {
            return Err(Errno::EACCES);
        };
        let (view, parent) = self.fief.container(container).map_err(errno)?.ok_or(Errno::ENOENT)?;
        Ok(match file {
            File::Status => page::status(&view, parent.as_deref()),
            _ => page::usage(&view),
        })
    }

    fn opened(&self, request: &Request, number: INodeNo, flags: OpenFlags) -> Result<FileHandle> {
        match (self.present(number)?.0, flags.acc_mode()) {
            (Inode::Of(_, File::Cmd), OpenAccMode::O_WRONLY) => self.caller(request).map(opened_by),
            (Inode::Of(_, File::Status | File::Usage), OpenAccMode::O_RDONLY) => {
                let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
                if pages.len() >= MOST_OPEN && request.uid() != 0 {
                    return Err(Errno::ENFILE);
                }
                let handle = self.next.fetch_add(1, Ordering::Relaxed);
                pages.insert(handle, String::new());
                Ok(FileHandle(handle))
            }
            (Inode::Of(..), _) => Err(Errno::EACCES),
            (Inode::Top, _) => Err(Errno::EISDIR),
        }
    }

    /// From its begin, a file says what is so now; what comes after that belongs to the same moment.
    fn part(&self, number: INodeNo, handle: FileHandle, offset: u64, size: u32) -> Result<Vec<u8>> {
        let written = if offset == 0 { Some(self.written(number)?) } else { None };
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let page = pages.get_mut(&handle.0).ok_or(Errno::EBADF)?;
        if let Some(written) = written {
            *page = written;
        }
        let rest = page.as_bytes().get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        Ok(rest[..rest.len().min(size as usize)].to_vec())
    }

    fn entries(&self, number: INodeNo) -> Result<Vec<(INodeNo, FileType, String)>> {
        let (inode, _) = self.present(number)?;
        let folders = self.lister.folders().map_err(errno)?;
        let own = |name: &str| (number, FileType::Directory, name.to_owned());
        let mut entries = vec![own("."), own("..")];
        if let Inode::Of(container, _) = inode {
            let file = |(file, name): (File, &str)| {
                (Inode::Of(container, file).number(), FileType::RegularFile, name.to_owned())
            };
            entries.extend(File::ALL.map(file));
        }
        let below = folders.within(slot(inode)?);
        entries.extend(below.map(|(name, container)| {
            (Inode::Of(container, File::Folder).number(), FileType::Directory, name.to_owned())
        }));
        Ok(entries)
    }
}

/// What the folders below it name as their parent.
pub fn slot(inode: Inode) -> Result<Option<u32>> {
    match inode {
        Inode::Top => Ok(None),
        Inode::Of(container, File::Folder) => Ok(Some(container.id)),
        Inode::Of(..) => Err(Errno::ENOTDIR),
    }
}

pub fn errno(error: fief_control::Error) -> Errno {
    let number = error.source().and_then(|source| source.downcast_ref::<io::Error>()?.raw_os_error());
    match (number, error.kind()) {
        (Some(number), _) => Errno::from_i32(number),
        (None, ErrorKind::Permission) => Errno::EPERM,
        (None, ErrorKind::NotFound) => Errno::ENOENT,
        (None, ErrorKind::Exists) => Errno::EEXIST,
        (None, ErrorKind::Full) => Errno::ENOSPC,
        (None, ErrorKind::Unsupported | ErrorKind::Drift) => Errno::EOPNOTSUPP,
        (None, _) => Errno::EIO,
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.found(parent, name) {
            Ok(present) => reply.entry(&FRESH, &self.attributes(present), Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.present(number) {
            Ok(present) => reply.attr(&FRESH, &self.attributes(present)),
            Err(errno) => reply.error(errno),
        }
    }

    /// A shell cuts off what it writes into, and touch sets times: neither changes anything. Nobody else gets the files.
    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let is_refused = mode.is_some() || uid.is_some() || gid.is_some();
        let allowed = if is_refused { Err(Errno::EPERM) } else { self.caller(request) };
        match allowed.and_then(|_| self.present(number)) {
            Ok(present) => reply.attr(&FRESH, &self.attributes(present)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = match self.entries(number) {
            Ok(entries) => entries,
            Err(errno) => return reply.error(errno),
        };
        let after = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (number, kind, name)) in entries.into_iter().enumerate().skip(after) {
            if reply.add(number, at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.opened(request, number, flags) {
            // the size is not known, and what was read is old
            Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.part(number, handle, offset, size) {
            Ok(part) => reply.data(&part),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _offset: u64,
        text: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.ordered(request, number, handle, text) {
            Ok(size) => reply.written(size),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
        reply.ok();
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        match self.made(request, parent, name) {
            Ok(present) => reply.entry(&FRESH, &self.attributes(present), Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.ended(request, parent, name) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    // A container has the files that it has, and its name.

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(&self, _: &Request, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }
}
