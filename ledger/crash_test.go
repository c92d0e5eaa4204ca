package ledger

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// TestKilledWriters has several processes write one ledger and kills them with
// SIGKILL, again and again: what was acknowledged is there, every chain holds,
// and no two writers had one stream.
func TestKilledWriters(t *testing.T) {
	if dir := os.Getenv("LEDGER_TEST_WRITER"); dir != "" {
		crashWriter(dir)
	}
	dir := filepath.Join(t.TempDir(), "ledger")
	acked := map[string]bool{}
	for round := range 6 {
		var procs []*exec.Cmd
		var outs []*bytes.Buffer
		for range 3 {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledWriters$")
			cmd.Env = append(os.Environ(), "LEDGER_TEST_WRITER="+dir)
			out := &bytes.Buffer{}
			cmd.Stdout, cmd.Stderr = out, os.Stderr
			must(t, cmd.Start())
			procs, outs = append(procs, cmd), append(outs, out)
		}
		time.Sleep(time.Duration(120+30*round) * time.Millisecond)
		for _, p := range procs {
			must(t, p.Process.Kill())
			if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("a writer ended before it was killed: %v", err)
			}
		}
		streams := map[string]bool{}
		for _, out := range outs {
			readAcks(t, out, acked, streams)
		}
		if r := verifyTest(t, dir); !r.OK {
			t.Fatalf("round %d: %+v", round, r.Streams)
		}
		held := map[string]bool{}
		for _, h := range scanTest(t, dir).Held {
			if h.Live {
				t.Fatalf("%s of a dead writer is live", h.Resource.ID)
			}
			held[h.Resource.ID] = true
		}
		for id := range acked {
			if !held[id] {
				t.Fatalf("round %d: %s was acknowledged and is lost", round, id)
			}
		}
	}
	if len(acked) == 0 {
		t.Fatal("nobody wrote anything")
	}
}

func readAcks(t *testing.T, out *bytes.Buffer, acked, streams map[string]bool) {
	t.Helper()
	s := bufio.NewScanner(out)
	for s.Scan() {
		line := s.Text()
		if name, ok := strings.CutPrefix(line, "stream "); ok {
			if streams[name] {
				t.Fatalf("two live writers had %s", name)
			}
			streams[name] = true
		} else if len(line) == len("r-0123456789abcdef") {
			acked[line] = true
		}
	}
}

func crashWriter(dir string) {
	ctx := context.Background()
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	d, err := OpenDir(dir, true)
	fail(err)
	l, err := Open(ctx, Options{Dir: d, Role: RoleRuntime, SegmentSize: 8 << 10})
	fail(err)
	fmt.Println("stream " + l.Stream())
	for {
		keep, churn := res("ws-keep", "a"), res("ws-churn", "b")
		fail(l.Intend(ctx, keep, churn))
		fmt.Println(keep.ID)
		fail(l.Release(churn.ID))
	}
}

// TestFullDisk: a full disk refuses intents with its own code, still takes what
// frees space, and the ledger is whole afterwards.
func TestFullDisk(t *testing.T) {
	testenv.Root(t)
	mnt := testenv.TmpFS(t, 2)
	dir := filepath.Join(mnt, "ledger")
	l := openTest(t, dir)
	ctx := context.Background()
	first := res("ws-1", "first")
	must(t, l.Intend(ctx, first))
	filler, err := os.Create(filepath.Join(mnt, "filler"))
	must(t, err)
	defer filler.Close()
	block := bytes.Repeat([]byte("x"), 4096)
	for {
		if _, err := filler.Write(block); err != nil {
			break
		}
	}
	var refused error
	for range 1000 {
		if refused = l.Intend(ctx, res("ws-2", strings.Repeat("p", 3000))); refused != nil {
			break
		}
	}
	if !errors.Is(refused, policy.CodeDiskFull) {
		t.Fatalf("a full disk: %v", refused)
	}
	wait, err := l.Later(ctx, res("ws-2", strings.Repeat("p", 3000)))
	must(t, err)
	for range keptRefusals + 2 { // who asks late is told all the same
		if err := l.Intend(ctx, res("ws-2", strings.Repeat("p", 3000))); !errors.Is(err, policy.CodeDiskFull) {
			t.Fatalf("an intent beside a refused one: %v", err)
		}
	}
	if err := wait(); !errors.Is(err, policy.CodeDiskFull) {
		t.Fatalf("a refused promise: %v", err)
	}
	must(t, filler.Truncate(0))
	must(t, l.Release(first.ID))
	must(t, l.Intend(ctx, res("ws-3", "after")))
	must(t, l.Close())
	if r := verifyTest(t, dir); !r.OK {
		t.Fatalf("%+v", r.Streams)
	}
	for _, h := range scanTest(t, dir).Held {
		if h.Resource.ID == first.ID {
			t.Fatal("the release was lost")
		}
	}
}

// failingDisk makes a kind of call fail while its error is set.
type failingDisk struct {
	osDisk
	onSync, onWrite, onRename, onSyncDir error
}

type failingFile struct {
	segmentFile
	d *failingDisk
}

func (d *failingDisk) create(dir *os.File, name string) (segmentFile, error) {
	f, err := d.osDisk.create(dir, name)
	return &failingFile{f, d}, err
}

func (d *failingDisk) open(dir *os.File, name string) (segmentFile, error) {
	f, err := d.osDisk.open(dir, name)
	return &failingFile{f, d}, err
}

func (d *failingDisk) rename(dir *os.File, from, to string) error {
	if d.onRename != nil {
		return d.onRename
	}
	return d.osDisk.rename(dir, from, to)
}

func (d *failingDisk) syncDir(dir *os.File) error {
	if d.onSyncDir != nil {
		return d.onSyncDir
	}
	return d.osDisk.syncDir(dir)
}

func (f *failingFile) sync() error {
	if f.d.onSync != nil {
		return f.d.onSync
	}
	return f.segmentFile.sync()
}

func (f *failingFile) WriteAt(p []byte, off int64) (int, error) {
	if f.d.onWrite != nil {
		n, _ := f.segmentFile.WriteAt(p[:len(p)/2], off) // half of it arrives
		return n, f.d.onWrite
	}
	return f.segmentFile.WriteAt(p, off)
}

// TestFailureIsForGood: after an error of the disk nothing is known about what
// it holds, so no later call may succeed, even if the disk seems well again.
func TestFailureIsForGood(t *testing.T) {
	for name, set := range map[string]func(*failingDisk, error){
		"sync":    func(d *failingDisk, err error) { d.onSync = err },
		"write":   func(d *failingDisk, err error) { d.onWrite = err },
		"rename":  func(d *failingDisk, err error) { d.onRename = err },
		"syncdir": func(d *failingDisk, err error) { d.onSyncDir = err },
	} {
		t.Run(name, func(t *testing.T) {
			d := &failingDisk{}
			dir := filepath.Join(t.TempDir(), "ledger")
			l := openTest(t, dir, func(o *Options) { o.disk, o.SegmentSize = d, 4<<10 })
			ctx := context.Background()
			good := res("ws-1", "good")
			must(t, l.Intend(ctx, good))
			set(d, unix.EIO)
			var err error
			for range 40 { // rename and syncdir come with the next segment
				if err = l.Intend(ctx, res("ws-1", "bad")); err != nil {
					break
				}
			}
			if !errors.Is(err, policy.CodeLedgerFailed) || !errors.Is(err, unix.EIO) {
				t.Fatalf("the failure came as %v", err)
			}
			set(d, nil)
			if err := l.Intend(ctx, res("ws-1", "after")); !errors.Is(err, policy.CodeLedgerFailed) {
				t.Fatalf("a failed ledger went on: %v", err)
			}
			if err := l.Release(good.ID); !errors.Is(err, policy.CodeLedgerFailed) {
				t.Fatalf("a failed ledger took a release: %v", err)
			}
			if err := l.Close(); !errors.Is(err, policy.CodeLedgerFailed) {
				t.Fatalf("a failed ledger closed well: %v", err)
			}
			// The next process finds what was acknowledged, and can go on.
			l = openTest(t, dir)
			must(t, l.Intend(ctx, res("ws-1", "next")))
			must(t, l.Close())
			found := false
			for _, h := range scanTest(t, dir).Held {
				found = found || h.Resource.ID == good.ID
			}
			if !found {
				t.Fatal("what was acknowledged is lost")
			}
		})
	}
}
