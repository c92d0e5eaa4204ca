package cow

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opDigest = "cow.digest"

// DigestRequest says which tree to digest. Nobody may be writing to it.
type DigestRequest struct {
	// Tree is the top directory, open for reading.
	Tree *os.File
	// Skip is a name at the top that does not count; "" is none.
	Skip string
	// Hash returns a further hash for a file's content or a symbolic link's
	// target, or nil; Done is given it when it has seen all of that. Neither is
	// called concurrently. Both may be nil.
	Hash func(rel string, size int64) hash.Hash
	Done func(rel string, st *Statx, h hash.Hash)
}

// TreeDigest identifies a tree and says what is in it.
type TreeDigest struct {
	// Digest is "sha256:…". It stands for names, kinds, permission bits, contents
	// and targets; not for owners, times, attributes, or which names are links of
	// one file. Two trees with the same digest hold the same.
	Digest                       string
	Files, Directories, Symlinks int64
	Bytes                        int64 // of files, each name counted
}

// Digest reads a tree. The digest of a directory is the hash of its entries in
// the bytewise order of their names, each as kind (one byte: f, l or d),
// permission bits (4 bytes, big endian), length of the name (4 bytes), name and
// the 32 bytes of its own digest: SHA-256 of a file's content, a link's target,
// or a directory. Other kinds of entries are refused.
func Digest(ctx context.Context, r DigestRequest) (TreeDigest, error) {
	defer runtime.KeepAlive(r)
	src, err := openBeneath(fd(r.Tree), cname(".\x00"), openDir)
	if err != nil {
		return TreeDigest{}, diagnose(opDigest, onSource, "", err)
	}
	defer closeFd(src)
	d := &digester{r: r, dir: newDirReader(), data: make([]byte, dataBuffer), link: make([]byte, unix.PathMax)}
	top := &digestDir{node: &dirNode{src: src}}
	all := []*digestDir{top} // each after the one that it lies in
	for i := 0; i < len(all); i++ {
		if err := ctxErr(ctx, opDigest); err != nil {
			return TreeDigest{}, err
		}
		below, err := d.read(all[i])
		if err != nil {
			return TreeDigest{}, err
		}
		all = append(all, below...)
	}
	for _, dir := range slices.Backward(all) {
		dir.sum()
	}
	d.res.Digest = policy.FormatDigest(top.digest[:])
	return d.res, nil
}

type digester struct {
	r    DigestRequest
	dir  *dirReader
	data []byte
	link []byte
	res  TreeDigest
}

type digestDir struct {
	node    *dirNode
	entries []digestEntry
	digest  [sha256.Size]byte
}

type digestEntry struct {
	name   string
	kind   byte
	mode   uint16
	digest [sha256.Size]byte
	dir    *digestDir
}

func (d *digestDir) sum() {
	slices.SortFunc(d.entries, func(a, b digestEntry) int { return cmp.Compare(a.name, b.name) })
	h := sha256.New()
	for _, e := range d.entries {
		if e.dir != nil {
			e.digest = e.dir.digest
		}
		b := binary.BigEndian.AppendUint32([]byte{e.kind}, uint32(e.mode&0o7777))
		b = binary.BigEndian.AppendUint32(b, uint32(len(e.name)))
		h.Write(append(append(b, e.name...), e.digest[:]...))
	}
	h.Sum(d.digest[:0])
	d.entries = nil
}

// read digests what a directory holds and returns the directories in it.
func (d *digester) read(dir *digestDir) (below []*digestDir, err error) {
	n := dir.node
	if n.parent != nil {
		top, names := n.fromTop()
		if n.src, err = openDown(top.src, names); err != nil {
			return nil, diagnose(opDigest, onSource, n.rel(nil), err)
		}
		defer func() { closeFd(n.src); n.src = -1 }()
	}
	for {
		more, err := d.dir.fill(n.src)
		if err != nil {
			return nil, diagnose(opDigest, onSource, n.rel(nil), err)
		}
		if !more {
			return below, nil
		}
		for {
			name, _, ok, err := d.dir.next()
			if err != nil {
				return nil, diagnose(opDigest, onSource, n.rel(nil), err)
			}
			if !ok {
				break
			}
			if n.parent == nil && d.r.Skip != "" && string(name.bytes()) == d.r.Skip {
				continue
			}
			e, err := d.entry(n, name)
			if err != nil {
				return nil, diagnose(opDigest, onSource, n.rel(name), err)
			}
			dir.entries = append(dir.entries, e)
			if e.dir != nil {
				below = append(below, e.dir)
			}
		}
	}
}

func (d *digester) entry(n *dirNode, name cname) (e digestEntry, err error) {
	var st unix.Statx_t
	if err := statxAt(n.src, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); err != nil {
		return e, err
	}
	e = digestEntry{name: string(name.bytes()), mode: st.Mode}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.kind = 'd'
		e.dir = &digestDir{node: &dirNode{parent: n, name: append(cname(nil), name...), src: -1}}
		d.res.Directories++
		return e, nil
	case unix.S_IFREG:
		e.kind = 'f'
		d.res.Files++
		d.res.Bytes += int64(st.Size)
		err = d.file(n, name, &st, &e)
	case unix.S_IFLNK:
		e.kind = 'l'
		d.res.Symlinks++
		var size int
		if size, err = readlinkat(n.src, name, d.link); err == nil {
			e.digest = sha256.Sum256(d.link[:size])
			if h := d.further(n, name, int64(size)); h != nil {
				h.Write(d.link[:size])
				d.r.Done(n.rel(name), (*Statx)(&st), h)
			}
		}
	default:
		err = policy.Errorf(policy.CodeInternal, opDigest, "the tree holds a %s", specialKind(byte(st.Mode>>12)))
	}
	return e, err
}

func (d *digester) further(n *dirNode, name cname, size int64) hash.Hash {
	if d.r.Hash == nil {
		return nil
	}
	return d.r.Hash(n.rel(name), size)
}

func (d *digester) file(n *dirNode, name cname, st *unix.Statx_t, e *digestEntry) error {
	f, err := openBeneath(n.src, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer closeFd(f)
	sum, more := sha256.New(), d.further(n, name, int64(st.Size))
	for {
		got, err := unix.Read(f, d.data)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case got == 0:
			sum.Sum(e.digest[:0])
			if more != nil {
				d.r.Done(n.rel(name), (*Statx)(st), more)
			}
			return nil
		}
		sum.Write(d.data[:got])
		if more != nil {
			more.Write(d.data[:got])
		}
	}
}
