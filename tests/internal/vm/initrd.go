package vm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// archive is a file system image as the kernel unpacks it at its start
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	bytes.Buffer
	inodes int
}

func (a *archive) add(name string, mode uint32, content []byte) {
	a.inodes++
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.inodes, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

// initrd is the guest program and the modules that it loads.
func initrd(guest string, modules []string) ([]byte, error) {
	const dir, file = 0o040755, 0o100755
	a := new(archive)
	for _, d := range []string{"dev", "proc", "sys", "root", "disk", "host", "modules"} {
		a.add(d, dir, nil)
	}
	b, err := os.ReadFile(guest)
	if err != nil {
		return nil, err
	}
	a.add("init", file, b)
	for i, m := range modules {
		b, err := os.ReadFile(m)
		if err != nil {
			return nil, err
		}
		a.add(fmt.Sprintf("modules/%02d-%s", i, filepath.Base(m)), file, b)
	}
	a.add("TRAILER!!!", 0, nil)
	return a.Bytes(), nil
}
