package disk

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// client is the other side of the protocol, as far as the tests need it.
type client struct {
	t    *testing.T
	conn net.Conn
}

func (c client) send(v ...any) {
	c.t.Helper()
	for _, v := range v {
		if err := binary.Write(c.conn, binary.BigEndian, v); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c client) receive(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c.conn, b); err != nil {
		c.t.Fatal(err)
	}
	return b
}

// attach connects a client and chooses the export.
func attach(t *testing.T, d *Disk) (c client, detach func()) {
	here, there := net.Pipe()
	done := make(chan error)
	go func() { done <- d.Serve(there) }()
	c = client{t, here}
	c.receive(18)
	c.send(uint32(1 | 2))
	c.send(uint64(magicOption), uint32(8), uint32(0)) // structured replies
	if r := c.receive(20); binary.BigEndian.Uint32(r[12:]) != repUnsupported {
		t.Fatalf("%x", r)
	}
	c.send(uint64(magicOption), uint32(optGo), uint32(6), uint32(0), uint16(0))
	export := c.receive(20 + 12)
	if size := binary.BigEndian.Uint64(export[22:]); size != uint64(d.size) {
		t.Fatalf("%d bytes of %d", size, d.size)
	}
	c.receive(20 + 14)
	c.receive(20)
	return c, func() {
		t.Helper()
		here.Close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func (c client) do(cmd, flags uint16, off uint64, length uint32, data []byte) (code uint32) {
	c.t.Helper()
	c.send(uint32(magicRequest), flags, cmd, uint64(7), off, length)
	if data != nil {
		c.send(data)
	}
	r := c.receive(16)
	if binary.BigEndian.Uint32(r) != magicSimple || binary.BigEndian.Uint64(r[8:]) != 7 {
		c.t.Fatalf("%x", r)
	}
	return binary.BigEndian.Uint32(r[4:])
}

func (c client) write(flags uint16, off uint64, data []byte) {
	c.t.Helper()
	if code := c.do(cmdWrite, flags, off, uint32(len(data)), data); code != 0 {
		c.t.Fatalf("error %d", code)
	}
}

func (c client) flush() {
	c.t.Helper()
	if code := c.do(cmdFlush, 0, 0, 0, nil); code != 0 {
		c.t.Fatalf("error %d", code)
	}
}

func (c client) read(off uint64, n uint32) []byte {
	c.t.Helper()
	if code := c.do(cmdRead, 0, off, n, nil); code != 0 {
		c.t.Fatalf("error %d", code)
	}
	return c.receive(int(n))
}

func block(fill byte) []byte { return bytes.Repeat([]byte{fill}, BlockSize) }

func newDisk(t *testing.T, blocks int64) *Disk {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, blocks*BlockSize); err != nil {
		t.Fatal(err)
	}
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// TestPower: what was written is read at once, and after a loss of power what was
// flushed, or written through, is there and nothing else.
func TestPower(t *testing.T) {
	d := newDisk(t, 16)
	c, detach := attach(t, d)
	c.write(0, 0, append(block('a'), block('b')...))
	c.flush()
	c.write(0, BlockSize, block('c'))
	c.write(flagFUA, 2*BlockSize, block('d'))
	c.write(0, 3*BlockSize, block('e'))
	for i, want := range []byte("acde\x00") {
		if got := c.read(uint64(i)*BlockSize, BlockSize); !bytes.Equal(got, block(want)) {
			t.Errorf("block %d begins with %q, not %q", i, got[0], want)
		}
	}
	if n := d.Unflushed(); n != 2 {
		t.Errorf("%d blocks are in the cache", n)
	}
	detach()
	if lost, err := d.LosePower(func() bool { return false }); lost != 2 || err != nil {
		t.Errorf("%d blocks are lost: %v", lost, err)
	}
	c, detach = attach(t, d)
	if got, want := c.read(0, 5*BlockSize), bytes.Join([][]byte{block('a'), block('b'), block('d'), block(0), block(0)}, nil); !bytes.Equal(got, want) {
		t.Error("after the loss of power the disk has something else than what was flushed")
	}
	// Of what was not flushed any part may survive.
	c.write(0, 0, append(block('x'), block('y')...))
	detach()
	keep := false
	if lost, err := d.LosePower(func() bool { keep = !keep; return keep }); lost != 1 || err != nil {
		t.Errorf("%d blocks are lost: %v", lost, err)
	}
	c, detach = attach(t, d)
	if got := c.read(0, 2*BlockSize); !bytes.Equal(got, append(block('x'), block('b')...)) {
		t.Errorf("the blocks begin with %q and %q", got[0], got[BlockSize])
	}
	detach()
}

// TestRefused: requests outside the disk, or not of whole blocks, change nothing.
func TestRefused(t *testing.T) {
	d := newDisk(t, 2)
	c, detach := attach(t, d)
	for _, q := range []struct {
		off uint64
		len uint32
	}{{2 * BlockSize, BlockSize}, {BlockSize, 2 * BlockSize}, {512, BlockSize}, {0, 512}, {1 << 63, BlockSize}} {
		if code := c.do(cmdWrite, 0, q.off, q.len, make([]byte, q.len)); code == 0 {
			t.Errorf("%+v is written", q)
		}
		if code := c.do(cmdRead, 0, q.off, q.len, nil); code == 0 {
			t.Fatalf("%+v is read", q)
		}
	}
	if d.Unflushed() != 0 {
		t.Error("something is in the cache")
	}
	detach()
}
