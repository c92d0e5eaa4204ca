// Package ledger is the cleanup ledger: append-only, fsynced and hash-chained.
//
// It exists because a crash must not leave behind anything that nobody dares to
// delete. Every resource is written down before it is made (Intend, durable on
// return), may be identified once it is there (Done), and is written off when it
// is gone (Release). After any crash the leftovers are exactly what dead writers
// still hold.
//
// # What is assumed of a crash
//
// A process may die between any two instructions. On power loss, what was
// written after the last completed fdatasync(2) may be there wholly, in part, or
// not at all, in any order of its sectors; what was there before is intact. A
// file's name is durable only after fsync(2) of its directory. After a failed
// fdatasync nothing is known about the pages, so the ledger fails for good
// ("fsyncgate"), and the next claim writes what it read once more. A sector that
// was never written back reads as zeros.
//
// A full disk is no failure: it refuses intents and keeps, and where allocated
// room is overwritten (ext4, xfs) a reserve takes what frees space. Elsewhere
// releases wait for room too, and Sync says so.
//
// # Format
//
//	ledger/<role>/s<NNN>/lock            held by the writer (OFD lock)
//	ledger/<role>/s<NNN>/<number>.seg    segments, the last one is written
//
// A segment is lines of JSON in a fixed layout, followed by zeros:
//
//	{"seq":N,"t":"TIME","d":N,"k":"KIND"[,BODY…],"h":"HEX64"}\n
//
//	seq  one more than the line before, across segments
//	d    the last seq that was known to be on disk when this line was written
//	h    SHA-256 over the hash of the line before and this line up to ,"h":
//
// The first line is a head, which repeats the hash that the last segment ended
// on and says how many carry lines follow: the whole state, so that older
// segments are evidence and not needed. A segment is written under the name
// <number>.seg.new and renamed when its head and carries are on disk; its
// predecessor then gets a seal, which takes no part in the chain.
//
// # Torn or damaged
//
// Bytes behind the last whole line of the last segment are torn, and are wiped
// at the next claim, unless something proves that they had been on disk whole: a
// later line whose d covers the missing one, or a line that is framed right but
// does not fit the chain. That is damage, as is anything wrong elsewhere:
// CodeLedgerBroken, and nothing is cleaned up until a person has looked.
//
// # Streams
//
// Several processes may use one Runtime root, so each writes a stream of its
// own, and the state is the union: a resource is held if some stream has its
// intent and none its release. A release of another stream's resource is a
// tombstone. Streams never wait for one another. A new segment carries a
// tombstone only while some stream still has the intent, and an intent only
// while no stream has its tombstone; the intent always goes first, so a
// released resource cannot come back.
//
// What a segment leaves out because of another stream's record is left out only
// once that record is durable. If another stream cannot be read, everything is
// carried.
//
// A stream whose lock is free is dead. The next process to claim it starts a
// new session, which readers see as soon as Open returns; what earlier sessions
// hold is not live. A reader asks for the lock before and behind its read, so
// that a claim in between never makes a live writer's resources a dead one's.
//
// # What it does not promise
//
// A release says that the resource is gone for good. The ledger cannot make it
// so: an unlink or rmdir that is not on disk is undone by a power failure, and
// then nobody knows of the thing. Sync the parent directory (or what it was
// renamed to) before Release, unless the resource does not outlive a boot.
//
// Damage to the very last commit may pass for a torn write: nothing later
// vouches for it. A stream that is removed as a whole is not missed.
//
// The ledger does not act: what becomes of a leftover is for its owner to
// decide. It is no protection from somebody who may write the directory.
package ledger
