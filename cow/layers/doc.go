// Package layers keeps container images: it starts the program yoi-layers, in
// which containers/storage unpacks and deletes layers, and speaks with it.
//
// It exists because that library is large, mounts things while it looks at what
// the kernel can do, and starts itself again to unpack; and because what it
// unpacks comes from strangers. So nothing of it is linked into yoi, yoi-runtimed
// or yoi-helper. yoi-layers runs in new user, mount, pid, network, ipc and uts
// namespaces, whose root holds the store and nothing else; it gets the archive as
// a descriptor, and its host uids are ones that own nothing but image layers. Its
// mounts and processes end with it, and it ends with whoever started it, because
// its standard input does.
//
// Package image reads archives, package store is the one file that knows
// containers/storage, package inside is the program.
//
// # Who owns what
//
// Started by root, ids 0 to 65535 of an image are host ids from IDs on, on disk;
// a launch maps them to its Worker's own range by idmapped mounts. Started by an
// ordinary user, every file is that user's.
//
// # What it does not promise
//
// Nothing is written to the ledger here: package helper does that, between the
// plan and the work. A layer that an import leaves behind half made is not told
// from a whole one here, either.
package layers
