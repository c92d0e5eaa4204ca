package disk

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
)

// BlockSize is the unit of all that is read, written and lost.
const BlockSize = 4096

// Disk is one disk. Its durable part is a sparse file, whose own caches play no role:
// this machine's power is not lost.
type Disk struct {
	size int64

	mu      sync.Mutex
	file    *os.File
	cache   map[int64][]byte // by the block's number: written, not flushed
	flushes int
}

// Open takes an existing file, a multiple of BlockSize long, for a disk's content.
func Open(path string) (*Disk, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && (st.Size() == 0 || st.Size()%BlockSize != 0) {
		err = fmt.Errorf("%s has %d bytes, which are no whole blocks", path, st.Size())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Disk{size: st.Size(), file: f, cache: make(map[int64][]byte)}, nil
}

// Close closes the file. What was not flushed is lost.
func (d *Disk) Close() error { return d.file.Close() }

// Unflushed is how many blocks a loss of power would take now.
func (d *Disk) Unflushed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.cache)
}

// Flushes is how often the machine asked for what it had written to be durable.
func (d *Disk) Flushes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flushes
}

// LosePower forgets each block that was not flushed, unless it is one that survives: a
// real cache writes back in an order of its own. It returns how many were forgotten.
// No client may be connected.
func (d *Disk) LosePower(survives func() bool) (lost int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(d.cache)) { // so that a seed decides
		if !survives() {
			lost++
			continue
		}
		if _, err := d.file.WriteAt(d.cache[n], n*BlockSize); err != nil {
			return lost, err
		}
	}
	clear(d.cache)
	return lost, nil
}

func (d *Disk) read(p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.file.ReadAt(p, off); err != nil && err != io.EOF {
		return err
	}
	for i := int64(0); i < int64(len(p)); i += BlockSize {
		if b, ok := d.cache[(off+i)/BlockSize]; ok {
			copy(p[i:], b)
		}
	}
	return nil
}

// write takes the blocks into the cache, or behind it if they are to be durable at once
// (forced unit access).
func (d *Disk) write(p []byte, off int64, fua bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := int64(0); i < int64(len(p)); i += BlockSize {
		n, b := (off+i)/BlockSize, p[i:i+BlockSize]
		if !fua {
			d.cache[n] = slices.Clone(b)
			continue
		}
		delete(d.cache, n)
		if _, err := d.file.WriteAt(b, n*BlockSize); err != nil {
			return err
		}
	}
	return nil
}

func (d *Disk) flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, b := range d.cache {
		if _, err := d.file.WriteAt(b, n*BlockSize); err != nil {
			return err
		}
	}
	clear(d.cache)
	d.flushes++
	return nil
}
