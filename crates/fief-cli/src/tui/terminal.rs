// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal of `top`: taken in raw mode, given back whatever happens (the end, an error, a panic, a signal), and the
//! loop between keys and snapshots.

use std::io::{self, Stdout};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use super::app::{App, Wish};
use super::screen;
use crate::cli::Top;
use crate::failure::{Failure, Result};
use crate::look::Source;

/// How soon a signal is noticed.
const ATTENTION: Duration = Duration::from_millis(200);
/// The first numbers need two looks; nobody wants to wait a whole interval for them.
const FIRST_INTERVAL: Duration = Duration::from_millis(300);

pub fn run(args: &Top, source: &mut dyn Source) -> Result<()> {
    let mut app = App::new(args.interval);
    // Before the terminal is taken: errors belong on the ordinary screen.
    app.update(source.see()?);
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(format!("cannot watch for signals: {error}")))?;
    let mut screen = Screen::take()?;
    let done = watch(args, source, &mut app, &mut screen, &ended);
    drop(screen);
    done
}

fn watch(args: &Top, source: &mut dyn Source, app: &mut App, screen: &mut Screen, ended: &AtomicBool) -> Result<()> {
    let mut next = Instant::now() + FIRST_INTERVAL.min(app.interval());
    let mut looks = 0;
    while !ended.load(Ordering::Relaxed) {
        screen.draw(app)?;
        let wish = match key(wait(app, next))? {
            Some(key) => app.on_key(key),
            None if !app.is_paused() && Instant::now() >= next => Wish::Look,
            None => Wish::Draw,
        };
        match wish {
            Wish::Draw => {}
            Wish::Quit => break,
            Wish::Suspend => screen.suspend()?,
            Wish::Look => {
                app.update(source.see()?);
                looks += 1;
                next = Instant::now() + app.interval();
                if Some(looks) == args.count.map(NonZeroU32::get) {
                    break;
                }
            }
        }
        // A shorter interval holds at once.
        next = next.min(Instant::now() + app.interval());
    }
    Ok(())
}

fn wait(app: &App, next: Instant) -> Duration {
    match app.is_paused() {
        true => ATTENTION,
        false => next.saturating_duration_since(Instant::now()).min(ATTENTION),
    }
}

/// The next key within a time; none, too, if the terminal changed its size.
fn key(within: Duration) -> Result<Option<event::KeyEvent>> {
    let failed = |error: io::Error| Failure::new(format!("cannot read the terminal: {error}"));
    if !event::poll(within).map_err(failed)? {
        return Ok(None);
    }
    match event::read().map_err(failed)? {
        Event::Key(key) if key.kind != KeyEventKind::Release => Ok(Some(key)),
        _ => Ok(None),
    }
}

struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn take() -> Result<Self> {
        // A message of a panic would be lost on the screen that is left with it.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        let screen = take().and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match screen {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                give_back();
                Err(Failure::new(format!("cannot set up the terminal: {error}; `fief top --plain` needs none")))
            }
        }
    }

    fn draw(&mut self, app: &mut App) -> Result<()> {
        let drawn = self.terminal.draw(|frame| screen::draw(frame, app));
        drawn.map(|_| ()).map_err(|error| Failure::new(format!("cannot draw on the terminal: {error}")))
    }

    /// Ctrl-Z: the shell gets its terminal; after `fg` all is drawn anew.
    fn suspend(&mut self) -> Result<()> {
        give_back();
        let stopped = nix::sys::signal::raise(nix::sys::signal::Signal::SIGTSTP).map_err(io::Error::from);
        stopped
            .and_then(|()| take())
            .and_then(|()| self.terminal.clear())
            .map_err(|error| Failure::new(format!("cannot take the terminal again: {error}")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

fn give_back() {
    // Where the terminal is gone there is nothing to give back.
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
