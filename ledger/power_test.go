package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// powerDisk passes everything on to the real disk and remembers it, so that
// powerCut can build what a power failure may leave at any moment.
type powerDisk struct {
	osDisk
	mu    sync.Mutex
	ops   []powerOp
	files int
}

type powerOp struct {
	kind     string // create open rename unlink syncdir write truncate sync
	file     int
	name, to string
	off      int64
	data     []byte
}

type powerFile struct {
	segmentFile
	disk *powerDisk
	id   int
}

func (d *powerDisk) log(op powerOp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops = append(d.ops, op)
}

func (d *powerDisk) now() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ops)
}

func (d *powerDisk) create(dir *os.File, name string) (segmentFile, error) {
	f, err := d.osDisk.create(dir, name)
	if err != nil {
		return nil, err
	}
	d.files++
	d.log(powerOp{kind: "create", file: d.files, name: name})
	return &powerFile{f, d, d.files}, nil
}

// open finds the file by the name it was made under.
func (d *powerDisk) open(dir *os.File, name string) (segmentFile, error) {
	f, err := d.osDisk.open(dir, name)
	if err != nil {
		return nil, err
	}
	id := 0
	for _, op := range d.ops {
		if op.kind == "create" && op.name == name+newSuffix {
			id = op.file
		}
	}
	return &powerFile{f, d, id}, nil
}

func (d *powerDisk) rename(dir *os.File, from, to string) error {
	d.log(powerOp{kind: "rename", name: from, to: to})
	return d.osDisk.rename(dir, from, to)
}

func (d *powerDisk) unlink(dir *os.File, name string) error {
	d.log(powerOp{kind: "unlink", name: name})
	return d.osDisk.unlink(dir, name)
}

func (d *powerDisk) syncDir(dir *os.File) error {
	err := d.osDisk.syncDir(dir)
	d.log(powerOp{kind: "syncdir"})
	return err
}

func (d *powerDisk) syncOther(dir *os.File, name string) error {
	err := d.osDisk.syncOther(dir, name)
	d.log(powerOp{kind: "syncother", name: name})
	return err
}

func (f *powerFile) WriteAt(p []byte, off int64) (int, error) {
	f.disk.log(powerOp{kind: "write", file: f.id, off: off, data: slices.Clone(p)})
	return f.segmentFile.WriteAt(p, off)
}

func (f *powerFile) truncate(n int64) error {
	f.disk.log(powerOp{kind: "truncate", file: f.id, off: n})
	return f.segmentFile.truncate(n)
}

func (f *powerFile) sync() error {
	err := f.segmentFile.sync()
	f.disk.log(powerOp{kind: "sync", file: f.id})
	return err
}

// powerCut builds in dir what may be on disk if the power fails before op at:
// of what was written to a file after its last sync each sector is there or
// not; of what happened to names after the last directory sync a prefix.
func powerCut(t *testing.T, ops []powerOp, at int, dir string, rnd *rand.Rand) {
	t.Helper()
	ops = ops[:at]
	lastSync, lastDir := map[int]int{}, 0
	for i, op := range ops {
		switch op.kind {
		case "sync":
			lastSync[op.file] = i
		case "syncdir":
			lastDir = i
		}
	}
	names, content := map[string]int{}, map[int][]byte{}
	namesEnd := lastDir + rnd.IntN(len(ops)-lastDir+1)
	for i, op := range ops {
		switch op.kind {
		case "create", "rename", "unlink":
			if i > lastDir && i >= namesEnd {
				continue
			}
			switch op.kind {
			case "create":
				names[op.name] = op.file
			case "rename":
				names[op.to] = names[op.name]
				delete(names, op.name)
			default:
				delete(names, op.name)
			}
		case "write":
			sectors(content, op, func() bool { return i < lastSync[op.file] || rnd.IntN(2) == 0 })
		case "truncate":
			if i < lastSync[op.file] || rnd.IntN(2) == 0 {
				content[op.file] = resize(content[op.file], int(op.off))
			}
		}
	}
	must(t, os.MkdirAll(dir, 0o755))
	for name, file := range names {
		must(t, os.WriteFile(filepath.Join(dir, name), content[file], 0o644))
	}
}

func resize(b []byte, n int) []byte {
	if n <= len(b) {
		return b[:n:n]
	}
	return append(b, make([]byte, n-len(b))...)
}

func sectors(content map[int][]byte, op powerOp, lands func() bool) {
	const sector = 512
	end := int(op.off) + len(op.data)
	for at := int(op.off); at < end; {
		next := min((at/sector+1)*sector, end)
		if lands() {
			b := content[op.file]
			if len(b) < next {
				b = resize(b, next)
			}
			copy(b[at:next], op.data[at-int(op.off):next-int(op.off)])
			content[op.file] = b
		}
		at = next
	}
}

// history is what the writer was told, by moment: the number of disk
// operations before it.
type history struct {
	issued, acked, released, gone map[string]int
	order                         []string
}

func (h *history) check(t *testing.T, at int, held []Held) {
	t.Helper()
	got := map[string]bool{}
	for _, x := range held {
		id := x.Resource.ID
		got[id] = true
		if when, ok := h.issued[id]; !ok || when > at {
			t.Errorf("%s is held and was never asked for", id)
		}
		if when, ok := h.gone[id]; ok && when <= at {
			t.Errorf("%s is back after its release was acknowledged", id)
		}
	}
	for id, when := range h.acked {
		if rel, ok := h.released[id]; when <= at && !got[id] && (!ok || rel > at) {
			t.Errorf("%s was acknowledged and is lost", id)
		}
	}
}

func writeHistory(t *testing.T, dir string, d *powerDisk) *history {
	t.Helper()
	ctx := context.Background()
	h := &history{map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, nil}
	for session := range 4 {
		l := openTest(t, dir, func(o *Options) { o.disk, o.SegmentSize = d, 4<<10 })
		if session > 0 { // a new segment right behind the claim
			r := res("ws-1", "p/"+strings.Repeat("x", 3800))
			h.issued[r.ID] = d.now()
			must(t, l.Intend(ctx, r))
			h.acked[r.ID] = d.now()
		}
		for i := range 14 {
			rs := make([]Resource, 1+i%4)
			for j := range rs {
				rs[j] = res("ws-1", fmt.Sprintf("p/%d/%d", i, j))
				h.issued[rs[j].ID] = d.now()
			}
			must(t, l.Intend(ctx, rs...))
			for _, r := range rs {
				h.acked[r.ID] = d.now()
			}
			if i%2 == 1 {
				for _, r := range rs[1:] {
					h.released[r.ID] = d.now()
					must(t, l.Release(r.ID))
				}
				if i%3 == 0 {
					must(t, l.Sync(ctx))
					for _, r := range rs[1:] {
						h.gone[r.ID] = d.now()
					}
				}
			}
		}
		if session == 1 { // a process that dies: what was buffered is never written
			l.closeFiles()
			continue
		}
		must(t, l.Close())
	}
	return h
}

// TestPowerFailure cuts the power before every disk operation of a history with
// sessions and rotations, several times each. What was acknowledged is there,
// nothing else is, no damage is seen, and the next writer goes on.
func TestPowerFailure(t *testing.T) {
	for name, base := range map[string]string{"overwrite": t.TempDir(), "append": shmDir(t)} {
		t.Run(name, func(t *testing.T) {
			d := &powerDisk{}
			h := writeHistory(t, filepath.Join(base, "ledger"), d)
			first := slices.IndexFunc(d.ops, func(op powerOp) bool { return op.kind == "create" })
			cuts := 0
			for at := first; at <= len(d.ops); at++ {
				for seed := range uint64(3) {
					dir := filepath.Join(shmDir(t), "cut", "ledger")
					powerCut(t, d.ops, at, filepath.Join(dir, RoleRuntime, streamName(0)), rand.New(rand.NewPCG(uint64(at), seed)))
					checkCut(t, h, at, dir)
					must(t, os.RemoveAll(filepath.Dir(dir)))
					if t.Failed() {
						t.Fatalf("cut before operation %d of %d, seed %d", at, len(d.ops), seed)
					}
					cuts++
				}
			}
			t.Logf("%d cuts over %d operations", cuts, len(d.ops))
		})
	}
}

func checkCut(t *testing.T, h *history, at int, dir string) {
	t.Helper()
	h.check(t, at, scanTest(t, dir).Held)
	l := openTest(t, dir)
	after := res("ws-2", "after")
	must(t, l.Intend(context.Background(), after))
	must(t, l.Close())
	held := slices.DeleteFunc(scanTest(t, dir).Held, func(x Held) bool { return x.Resource.ID == after.ID })
	h.check(t, at, held)
	if r := verifyTest(t, dir); !r.OK {
		t.Errorf("verify after healing: %+v", r.Streams[0].Break)
	}
}

// TestLater: the records go with somebody else's commit, for no sync of their own,
// and are there when wait has returned; without another commit wait makes one.
func TestLater(t *testing.T) {
	ctx, d, dir := context.Background(), &powerDisk{}, filepath.Join(t.TempDir(), "ledger")
	l := openTest(t, dir, func(o *Options) { o.disk = d })
	syncs := func() (n int) {
		for _, op := range d.ops {
			if op.kind == "sync" {
				n++
			}
		}
		return n
	}
	first, second, third := res("ws-1", "later"), res("ws-1", "now"), res("ws-1", "alone")
	before := syncs()
	wait, err := l.Later(ctx, first)
	must(t, err)
	if n := syncs() - before; n != 0 {
		t.Errorf("Later syncs %d times", n)
	}
	must(t, l.Intend(ctx, second))
	must(t, wait())
	if n := syncs() - before; n != 1 {
		t.Errorf("both were synced in %d commits", n)
	}
	wait, err = l.Later(ctx, third)
	must(t, err)
	must(t, wait())
	if n := syncs() - before; n != 2 {
		t.Errorf("the third was synced in %d commits", n-1)
	}
	l.closeFiles() // the process dies
	if held := scanTest(t, dir).Held; len(held) != 3 {
		t.Errorf("held are %+v", held)
	}
}

// shmDir is a directory on tmpfs: one without overwriting, and a fast one.
func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ledger-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
