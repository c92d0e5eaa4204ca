package helper

import (
	"errors"
	"iter"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow/layers"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// IDPool is the host uid and gid range that privileged Workers take theirs
// from: Count slots of rangeSize ids from Base on.
type IDPool struct {
	Base  uint32 `json:"base"`
	Count uint32 `json:"count"`
}

// DefaultIDPool lies between the ranges that systemd gives to containers
// (524288 to 1879048191, systemd.io UIDS-GIDS) and 2^31, above which some
// programs still fail.
var DefaultIDPool = IDPool{Base: 0x70010000, Count: 2048}

const (
	rangeSize = 65536
	// workerID is the Worker's uid and gid inside, always.
	workerID = 1000
	// rangesLock holds one byte per slot, locked by whoever uses it. It is for
	// the whole host, so that several Runtime roots never share a slot.
	rangesLock = "/run/yoi-id-ranges"
)

// Validate checks that the pool keeps clear of the host's own users and fits
// into 31 bits.
func (p IDPool) Validate() error {
	end := uint64(p.Base) + uint64(p.Count)*rangeSize
	if p.Base < 524288 || p.Count == 0 || p.Count > 16384 || end > 1<<31 ||
		(p.Base < layers.IDs+layers.IDCount && end > layers.IDs) {
		return policy.Errorf(policy.CodeConfigInvalid, "helper.id_pool", "the id pool from %d with %d ranges is outside 524288 to 2147483647, or holds those of images from %d", p.Base, p.Count, layers.IDs)
	}
	return nil
}

// idRanges hands out slots. A slot is an open file description lock on one byte
// of rangesLock (fcntl(2), F_OFD_SETLK): the Worker's PID 1 inherits the
// descriptor, so the kernel frees the slot exactly when the last process that
// could use its ids is gone, whatever became of the helper.
type idRanges struct {
	pool IDPool
	mu   sync.Mutex
	next uint32
	// idmaps caches, per slot, the user namespace that maps the Runtime root's
	// owner on disk to the slot's Worker.
	idmaps map[uint32]*os.File
	// images and owned have those that map the image store's ids, and its owner's.
	images, owned map[uint32]*os.File
}

type idRange struct {
	slot uint32
	base uint32
	lock *os.File
}

func newIDRanges(p IDPool) *idRanges {
	return &idRanges{pool: p, idmaps: make(map[uint32]*os.File), images: make(map[uint32]*os.File), owned: make(map[uint32]*os.File), next: uint32(os.Getpid()) % p.Count}
}

// acquire takes a free slot.
func (r *idRanges) acquire() (idRange, error) {
	const op = "helper.id_range"
	fd, err := unix.Open(rangesLock, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return idRange{}, policy.Errorf(policy.CodeIDRangeExhausted, op, "the host's table of uid ranges cannot be opened").Because(err)
	}
	f := os.NewFile(uintptr(fd), "id-ranges")
	for slot := range r.candidates() {
		base := r.pool.Base + slot*rangeSize
		// Keyed by the range itself, so that pools configured differently still
		// exclude each other.
		lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: int64(base / rangeSize), Len: 1}
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
		switch {
		case err == nil:
			return idRange{slot, base, f}, nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES):
			f.Close()
			return idRange{}, policy.Errorf(policy.CodeIDRangeExhausted, op, "the host's table of uid ranges cannot be locked").Because(err)
		}
	}
	f.Close()
	return idRange{}, policy.Errorf(policy.CodeIDRangeExhausted, op, "all %d uid ranges are in use", r.pool.Count)
}

// candidates yields the slots in the order in which to try them: first those
// whose idmap is at hand, since making one takes a process of its own, which is
// a tenth of a launch; then all, each time from another one on.
func (r *idRanges) candidates() iter.Seq[uint32] {
	r.mu.Lock()
	known := slices.Collect(maps.Keys(r.idmaps))
	first := r.next
	r.next = (r.next + 1) % r.pool.Count
	r.mu.Unlock()
	return func(yield func(uint32) bool) {
		for _, slot := range known {
			if !yield(slot) {
				return
			}
		}
		for i := range r.pool.Count {
			if !yield((first + i) % r.pool.Count) {
				return
			}
		}
	}
}

// idmap returns the user namespace for idmapped mounts of files owned by uid
// and gid on disk, for the Worker of a slot. The file stays the cache's.
func (r *idRanges) idmap(g idRange, uid, gid int) (*os.File, error) {
	return r.cached(r.idmaps, g.slot, func() (*os.File, error) { return newIDMap(g, uid, gid) })
}

// imageIDMap returns the user namespace for idmapped mounts of image layers: the
// ids of an image are the Worker's range's, and an owner's files are the root's in
// that range.
func (r *idRanges) imageIDMap(g idRange, root *rootdir.Root, owned bool) (*os.File, error) {
	if owned {
		return r.cached(r.owned, g.slot, func() (*os.File, error) { return ownerTo(root, g.base) })
	}
	return r.cached(r.images, g.slot, func() (*os.File, error) {
		m := []mounts.IDMap{{Inside: layers.IDs, Outside: g.base, Count: rangeSize}}
		return mounts.UserNS(m, m)
	})
}

func (r *idRanges) cached(idmaps map[uint32]*os.File, slot uint32, make func() (*os.File, error)) (*os.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := idmaps[slot]; f != nil {
		return f, nil
	}
	f, err := make()
	if err != nil {
		return nil, err
	}
	if len(idmaps) >= 64 { // bound the descriptors; which one goes does not matter
		for slot, old := range idmaps {
			old.Close()
			delete(idmaps, slot)
			break
		}
	}
	idmaps[slot] = f
	return f, nil
}

// newIDMap makes a user namespace in which uid and gid stand for the Worker.
func newIDMap(g idRange, uid, gid int) (*os.File, error) {
	host := g.base + workerID
	return mounts.UserNS(
		[]mounts.IDMap{{Inside: uint32(uid), Outside: host, Count: 1}},
		[]mounts.IDMap{{Inside: uint32(gid), Outside: host, Count: 1}})
}

func (r *idRanges) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range []map[uint32]*os.File{r.idmaps, r.images, r.owned} {
		for _, f := range m {
			f.Close()
		}
		clear(m)
	}
}
