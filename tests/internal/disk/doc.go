// Package disk is a disk with a volatile write cache, as real ones have: what was
// written and not flushed may be gone after a loss of power, in any part.
//
// Killing a program loses nothing that the kernel has in its caches, and killing a
// virtual machine nothing that its disk image has in the host's. So a missing fsync(2)
// shows in neither. This disk keeps writes in its own memory until the machine asks for
// a flush, and forgets them when told to. A block is whole, old or new: nothing is torn
// within one.
//
// It speaks the NBD protocol over a connected socket (the protocol's description is
// doc/proto.md of the NetworkBlockDevice project), to one client, as much of it as
// qemu's needs.
package disk
