// SPDX-License-Identifier: MPL-2.0

package process

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// mostFiles is how many files come with one request: stdin, stdout, stderr.
const mostFiles = 3

// pass sends data with open files, which the receiver gets as its own (SCM_RIGHTS, unix(7)).
func pass(c *net.UnixConn, data []byte, files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
		// Who gets the file shares its flags, and programs expect to wait in a read.
		if err := syscall.SetNonblock(fds[i], false); err != nil {
			return err
		}
	}
	n, _, err := c.WriteMsgUnix(data, unix.UnixRights(fds...), nil)
	if err == nil && n < len(data) { // the files went with the first byte
		_, err = c.Write(data[n:])
	}
	return err
}

// receiver reads what pass sent, and keeps the files.
type receiver struct {
	conn  *net.UnixConn
	files []*os.File
}

func (r *receiver) Read(b []byte) (int, error) {
	rights := make([]byte, unix.CmsgSpace(4*mostFiles)) // the kernel closes those beyond
	n, m, _, _, err := r.conn.ReadMsgUnix(b, rights)
	messages, other := unix.ParseSocketControlMessage(rights[:m])
	if err == nil {
		err = other
	}
	for _, message := range messages {
		fds, other := unix.ParseUnixRights(&message)
		if other != nil {
			return n, other
		}
		for _, fd := range fds {
			r.files = append(r.files, os.NewFile(uintptr(fd), "passed"))
		}
		if len(r.files) > mostFiles {
			return n, fmt.Errorf("%d files in one request; allowed are %d", len(r.files), mostFiles)
		}
	}
	return n, err
}

func (r *receiver) close() {
	for _, f := range r.files {
		f.Close()
	}
}
