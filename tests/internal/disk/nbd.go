package disk

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"

	"golang.org/x/sys/unix"
)

// The protocol's numbers.
const (
	magicServer  = 0x4e42444d41474943 // NBDMAGIC
	magicOption  = 0x49484156454f5054 // IHAVEOPT
	magicReply   = 0x3e889045565a9
	magicRequest = 0x25609513
	magicSimple  = 0x67446698

	handshakeFlags = 1 | 2 // fixed newstyle, no zeroes

	optAbort, optInfo, optGo = 2, 6, 7

	repAck, repInfo = 1, 3
	repUnsupported  = 1<<31 + 1

	infoExport, infoBlockSize = 0, 3

	transmissionFlags = 1 | 4 | 8 // has flags, flush, forced unit access

	cmdRead, cmdWrite, cmdDisconnect, cmdFlush = 0, 1, 2, 3

	flagFUA = 1

	maxPayload = 32 << 20
)

// errAbort ends a negotiation that the client does not want.
var errAbort = errors.New("the client went away")

// Serve serves one client until it goes away. Requests are done in their order, so a
// flush finds all that was answered before it in the cache.
func (d *Disk) Serve(conn net.Conn) error {
	defer conn.Close()
	s := session{d: d, r: bufio.NewReader(conn), w: conn}
	err := s.negotiate()
	for err == nil {
		err = s.request()
	}
	if errors.Is(err, errAbort) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil // its machine lost power
	}
	return err
}

type session struct {
	d *Disk
	r *bufio.Reader
	w io.Writer
}

// send writes values as they come, in one write.
func (s *session) send(values ...any) error {
	var b []byte
	for _, v := range values {
		switch v := v.(type) {
		case uint16:
			b = binary.BigEndian.AppendUint16(b, v)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, v)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, v)
		case []byte:
			b = append(b, v...)
		default:
			panic(fmt.Sprintf("%T", v))
		}
	}
	_, err := s.w.Write(b)
	return err
}

func (s *session) receive(v any) error { return binary.Read(s.r, binary.BigEndian, v) }

// negotiate is the fixed newstyle handshake, as far as the export is chosen.
func (s *session) negotiate() error {
	if err := s.send(uint64(magicServer), uint64(magicOption), uint16(handshakeFlags)); err != nil {
		return err
	}
	var flags uint32
	if err := s.receive(&flags); err != nil {
		return err
	}
	for {
		var opt struct {
			Magic       uint64
			Option, Len uint32
		}
		if err := s.receive(&opt); err != nil {
			return err
		}
		if opt.Magic != magicOption || opt.Len > 1<<16 {
			return fmt.Errorf("no option: %+v", opt)
		}
		if _, err := s.r.Discard(int(opt.Len)); err != nil { // whatever its name, there is one export
			return err
		}
		reply := func(kind uint32, data ...any) error {
			n := 0
			for _, v := range data {
				n += binary.Size(v)
			}
			return s.send(append([]any{uint64(magicReply), opt.Option, kind, uint32(n)}, data...)...)
		}
		var err error
		switch opt.Option {
		case optGo, optInfo:
			err = errors.Join(
				reply(repInfo, uint16(infoExport), uint64(s.d.size), uint16(transmissionFlags)),
				reply(repInfo, uint16(infoBlockSize), uint32(BlockSize), uint32(BlockSize), uint32(maxPayload)),
				reply(repAck))
			if err == nil && opt.Option == optGo {
				return nil
			}
		case optAbort:
			return errors.Join(reply(repAck), errAbort)
		default:
			err = reply(repUnsupported)
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) request() error {
	var q struct {
		Magic          uint32
		Flags, Command uint16
		Handle, Offset uint64
		Len            uint32
	}
	if err := s.receive(&q); err != nil {
		return err
	}
	if q.Magic != magicRequest {
		return fmt.Errorf("no request: %+v", q)
	}
	answer := func(err error, data []byte) error {
		code := uint32(0)
		if err != nil {
			code, data = uint32(unix.EIO), nil
			if errors.Is(err, unix.EINVAL) {
				code = uint32(unix.EINVAL)
			}
		}
		return s.send(uint32(magicSimple), code, q.Handle, data)
	}
	bad := q.Len > maxPayload || q.Offset > math.MaxInt64 || int64(q.Offset) > s.d.size-int64(q.Len) || q.Offset%BlockSize != 0 || q.Len%BlockSize != 0
	switch q.Command {
	case cmdRead:
		if bad {
			return answer(unix.EINVAL, nil)
		}
		p := make([]byte, q.Len)
		return answer(s.d.read(p, int64(q.Offset)), p)
	case cmdWrite:
		if q.Len > maxPayload {
			return fmt.Errorf("a write of %d bytes", q.Len)
		}
		p := make([]byte, q.Len)
		if _, err := io.ReadFull(s.r, p); err != nil {
			return err
		}
		if bad {
			return answer(unix.EINVAL, nil)
		}
		return answer(s.d.write(p, int64(q.Offset), q.Flags&flagFUA != 0), nil)
	case cmdFlush:
		return answer(s.d.flush(), nil)
	case cmdDisconnect:
		return errAbort
	}
	return answer(unix.EINVAL, nil)
}
