//! The exported functions of the driver's interface. Each is a frame around one idea of the modules above.

mod contexts;
mod copies;
mod devices;
mod events;
mod graphs;
mod host_memory;
mod launches;
mod memory;
mod misc;
mod modules;
mod pools;
mod streams;
mod virtual_memory;
