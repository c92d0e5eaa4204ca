// Package store keeps image layers with the drivers of containers/storage. It is
// the only file that knows the library, and yoi-layers the only program that
// links it.
//
// Of the library only the drivers are used, not its records of images and
// containers: which layers there are, and whose, is the ledger's to know, so
// that a crash leaves nothing that two books disagree about. The drivers mount
// file systems to see what the kernel can do and start this program again,
// chrooted, to unpack; both need the namespaces that package inside is in.
package store

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	graphdriver "go.podman.io/storage/drivers"
	"go.podman.io/storage/drivers/overlay"
	"go.podman.io/storage/drivers/vfs"
	"go.podman.io/storage/pkg/reexec"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Reexec must be the first call of a program that links this package. It reports
// that this process is one that the library started, and has done its work.
func Reexec() bool { return reexec.Init() }

// Store is a driver's layers.
type Store struct {
	driver graphdriver.Driver
	dir    string
}

// Open opens dir, whose file system has room for layers; run is for the
// library's short-lived files.
func Open(driver policy.ImageDriver, dir, run string) (*Store, error) {
	o := graphdriver.Options{Root: dir, RunRoot: run}
	var d graphdriver.Driver
	err := sweep(filepath.Join(dir, "overlay"))
	if err != nil {
		return nil, failed("the image store cannot be cleaned", err)
	}
	if driver == policy.ImageVFS {
		d, err = vfs.Init(filepath.Join(dir, "vfs"), o)
	} else {
		// Our mount namespace is private already.
		o.DriverOptions = []string{"overlay.skip_mount_home=true"}
		home := filepath.Join(dir, "overlay")
		if err = os.MkdirAll(home, 0o700); err == nil {
			d, err = overlay.Init(home, o)
		}
	}
	if err != nil {
		f := failed("the image store cannot be opened", err)
		if driver == policy.ImageOverlay {
			f = f.WithHint("Where the file system has no overlays, --driver vfs works.")
		}
		return nil, f
	}
	return &Store{driver: d, dir: dir}, nil
}

// Has reports whether there is a layer of that name, whole or not.
func (s *Store) Has(layer string) bool { return s.driver.Exists(layer) }

// Add makes a layer on parent, "" for none, from an uncompressed tar stream. A
// layer of that name is replaced.
func (s *Store) Add(layer, parent string, diff io.Reader) error {
	if s.Has(layer) {
		if err := s.Remove(layer); err != nil {
			return err
		}
	}
	if err := s.driver.Create(layer, parent, nil); err != nil {
		return failed("a layer cannot be made", err)
	}
	if _, err := s.driver.ApplyDiff(layer, graphdriver.ApplyDiffOpts{Diff: diff}); err != nil {
		return failed("a layer cannot be unpacked", err)
	}
	return nil
}

// Remove removes a layer; one that is not there is removed already.
func (s *Store) Remove(layer string) error {
	if err := s.driver.Remove(layer); err != nil && !errors.Is(err, os.ErrNotExist) {
		return failed("a layer cannot be removed", err)
	}
	return nil
}

// Sync makes everything in the store durable.
func (s *Store) Sync() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return failed("the image store cannot be synced", err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return failed("the image store cannot be synced", err)
	}
	return nil
}

// Close gives back what the driver holds.
func (s *Store) Close() error { return s.driver.Cleanup() }

// sweep removes the directories in which an earlier process, which was killed,
// tried the kernel's overlays: they have names of their own beside the layers'.
func sweep(home string) error {
	entries, err := os.ReadDir(home)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if n := e.Name(); n == "l" || len(n) == layerName || strings.HasPrefix(n, ".has-") {
			continue
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(home, e.Name())))
	}
	return err
}

// layerName is the length of a layer's name.
const layerName = 64

// failed finds a full disk in an error, also where the library has only the text
// that its other process wrote.
func failed(what string, err error) *policy.Diagnostic {
	full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) ||
		strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error())
	if full {
		return policy.Errorf(policy.CodeDiskFull, "layers.store", "the Runtime root's file system is full").Because(err)
	}
	return policy.Errorf(policy.CodeImageProgramFailed, "layers.store", "%s", what).Because(err)
}
