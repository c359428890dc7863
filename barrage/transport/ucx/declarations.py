"""What we use of libucp: its functions and structures, as C declarations and constants.

Written from the public header (``ucp/api/ucp.h``), whose structures only ever grow at their end and
say with a field mask which of their fields count; ``pad`` leaves room for fields of later releases,
so one set serves all releases from 1.13 to 1.22. Two traps: ``ucs_status_t`` is an enum packed into
one byte, and a returned request pointer is an error when it lies in the last 100 addresses.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

DECLARATIONS: Final = """
typedef signed char ucs_status_t;
typedef struct { uint64_t field_mask, features; size_t request_size; void *request_init,
    *request_cleanup; uint64_t tag_sender_mask; int mt_workers_shared; size_t estimated_num_eps,
    estimated_num_ppn; const char *name; uint64_t pad[8]; } ucp_params_t;
typedef struct { uint64_t field_mask; int thread_mode; unsigned long cpu_mask[16];
    unsigned events; void *user_data; int event_fd; uint64_t flags; const char *name;
    size_t am_alignment; uint64_t client_id; uint64_t pad[8]; } ucp_worker_params_t;
typedef struct { const void *addr; uint32_t addrlen; } ucs_sock_addr_t;
typedef struct { uint64_t field_mask; ucs_sock_addr_t sockaddr; void *accept_cb, *accept_arg,
    *conn_cb, *conn_arg; uint64_t pad[8]; } ucp_listener_params_t;
typedef struct { uint64_t field_mask; uint64_t sockaddr[16]; uint64_t pad[8]; }
    ucp_listener_attr_t;
typedef struct { uint64_t field_mask; const void *address; int err_mode; void *err_cb, *err_arg,
    *user_data; unsigned flags; ucs_sock_addr_t sockaddr; void *conn_request; const char *name;
    ucs_sock_addr_t local_sockaddr; uint64_t pad[8]; } ucp_ep_params_t;
typedef struct { uint32_t op_attr_mask, flags; void *request, *cb; uint64_t datatype;
    void *user_data, *reply_buffer; int memory_type; void *recv_info, *memh; uint64_t pad[8]; }
    ucp_request_param_t;
typedef struct { uint64_t field_mask; uint64_t client_address[16]; uint64_t client_id;
    uint64_t pad[8]; } ucp_conn_request_attr_t;
typedef struct { uint64_t sender_tag; size_t length; uint64_t pad[2]; } ucp_tag_recv_info_t;
typedef struct { const void *buffer; size_t length; } ucp_dt_iov_t;
typedef struct { uint64_t recv_attr; void *reply_ep; } ucp_am_recv_param_t;
typedef struct { uint64_t field_mask; unsigned id; uint32_t flags; void *cb, *arg;
    uint64_t pad[8]; } ucp_am_handler_param_t;
typedef struct { uint64_t field_mask; void *address; size_t length; unsigned flags, prot;
    int memory_type; const void *exported_memh; uint64_t pad[8]; } ucp_mem_map_params_t;

const char *ucp_get_version_string(void);
void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);
ucs_status_t ucp_config_read(const char *env_prefix, const char *filename, void **config);
ucs_status_t ucp_config_modify(void *config, const char *name, const char *value);
void ucp_config_release(void *config);
ucs_status_t ucp_init_version(unsigned major, unsigned minor, const ucp_params_t *params,
    const void *config, void **context);
void ucp_cleanup(void *context);

ucs_status_t ucp_worker_create(void *context, const ucp_worker_params_t *params, void **worker);
void ucp_worker_destroy(void *worker);
unsigned ucp_worker_progress(void *worker);
ucs_status_t ucp_worker_get_efd(void *worker, int *fd);
ucs_status_t ucp_worker_arm(void *worker);
ucs_status_t ucp_worker_get_address(void *worker, void **address, size_t *length);
void ucp_worker_release_address(void *worker, void *address);
ucs_status_t ucp_worker_set_am_recv_handler(void *worker, const ucp_am_handler_param_t *param);

ucs_status_t ucp_listener_create(void *worker, const ucp_listener_params_t *params,
    void **listener);
ucs_status_t ucp_listener_query(void *listener, ucp_listener_attr_t *attributes);
ucs_status_t ucp_conn_request_query(void *conn_request, ucp_conn_request_attr_t *attributes);
ucs_status_t ucp_listener_reject(void *listener, void *conn_request);
void ucp_listener_destroy(void *listener);

ucs_status_t ucp_ep_create(void *worker, const ucp_ep_params_t *params, void **ep);
void *ucp_ep_close_nbx(void *ep, const ucp_request_param_t *param);
void *ucp_ep_flush_nbx(void *ep, const ucp_request_param_t *param);

void *ucp_am_send_nbx(void *ep, unsigned id, const void *header, size_t header_length,
    const void *buffer, size_t count, const ucp_request_param_t *param);
void *ucp_am_recv_data_nbx(void *worker, void *data, void *buffer, size_t count,
    const ucp_request_param_t *param);
void ucp_am_data_release(void *worker, void *data);
void *ucp_tag_send_nbx(void *ep, const void *buffer, size_t count, uint64_t tag,
    const ucp_request_param_t *param);
void *ucp_tag_send_sync_nbx(void *ep, const void *buffer, size_t count, uint64_t tag,
    const ucp_request_param_t *param);
void *ucp_tag_recv_nbx(void *worker, void *buffer, size_t count, uint64_t tag, uint64_t mask,
    const ucp_request_param_t *param);
void *ucp_tag_probe_nb(void *worker, uint64_t tag, uint64_t mask, int remove,
    ucp_tag_recv_info_t *info);
void *ucp_tag_msg_recv_nbx(void *worker, void *buffer, size_t count, void *message,
    const ucp_request_param_t *param);

ucs_status_t ucp_mem_map(void *context, const ucp_mem_map_params_t *params, void **memh);
ucs_status_t ucp_mem_unmap(void *context, void *memh);
ucs_status_t ucp_rkey_pack(void *context, void *memh, void **buffer, size_t *size);
void ucp_rkey_buffer_release(void *buffer);
ucs_status_t ucp_ep_rkey_unpack(void *ep, const void *buffer, void **rkey);
void ucp_rkey_destroy(void *rkey);
void *ucp_get_nbx(void *ep, void *buffer, size_t count, uint64_t remote_address, void *rkey,
    const ucp_request_param_t *param);

void ucp_request_cancel(void *worker, void *request);
void ucp_request_free(void *request);
"""

# Types of the functions libucp calls back.
AM_CALLBACK: Final = (
    "ucs_status_t(void *, const void *, size_t, void *, size_t, const ucp_am_recv_param_t *)"
)
ERROR_CALLBACK: Final = "void(void *, void *, ucs_status_t)"
CONNECTION_CALLBACK: Final = "void(void *, void *)"
SENT_CALLBACK: Final = "void(void *, ucs_status_t, void *)"
RECEIVED_CALLBACK: Final = "void(void *, ucs_status_t, const ucp_tag_recv_info_t *, void *)"
FETCHED_CALLBACK: Final = "void(void *, ucs_status_t, size_t, void *)"

FEATURE_TAG: Final = 1
FEATURE_RMA: Final = 2
FEATURE_WAKEUP: Final = 16
FEATURE_AM: Final = 64

PARAMS_FEATURES: Final = 1
PARAMS_SHARED_WORKERS: Final = 32
WORKER_THREAD_MODE: Final = 1
THREAD_MODE_SERIALIZED: Final = 1
WORKER_FLAGS: Final = 32
WORKER_IGNORE_REQUEST_LEAK: Final = 1
LISTENER_SOCKADDR: Final = 1
LISTENER_CONNECTION_HANDLER: Final = 4
LISTENER_ATTR_SOCKADDR: Final = 1
REQUEST_ATTR_CLIENT_ADDRESS: Final = 1

EP_ERROR_MODE: Final = 2
EP_ERROR_HANDLER: Final = 4
EP_SOCKADDR: Final = 16
EP_FLAGS: Final = 32
EP_CONNECTION_REQUEST: Final = 64
EP_CLIENT_SERVER: Final = 1

AM_HANDLER_FIELDS: Final = 1 | 4 | 8  # id, callback, argument
AM_SEND_REPLY: Final = 1
AM_IS_RENDEZVOUS: Final = 1 << 17

OP_CALLBACK: Final = 2
OP_USER_DATA: Final = 4
OP_DATATYPE: Final = 8
OP_FLAGS: Final = 16
OP_NO_IMMEDIATE: Final = 1 << 16
CLOSE_FORCE: Final = 1
DATATYPE_IOV: Final = 2
MEMORY_ADDRESS_AND_LENGTH: Final = 1 | 2

ERROR_POINTERS_FIRST: Final = 2**64 - 100


class Status(IntEnum):
    """The results we act upon (``ucs/type/status.h``); any other number may come as well."""

    OK = 0
    IN_PROGRESS = 1
    NO_MEMORY = -4
    INVALID_PARAMETER = -5
    UNREACHABLE = -6
    INVALID_ADDRESS = -7
    TRUNCATED = -9
    NO_DEVICE = -14
    BUSY = -15
    CANCELLED = -16
    TIMED_OUT = -20
    LIMIT = -21
    UNSUPPORTED = -22
    REJECTED = -23
    NOT_CONNECTED = -24
    RESET = -25
    ENDPOINT_TIMEOUT = -80


_MEANINGS: Final = {
    Status.NO_MEMORY: "out of memory",
    Status.INVALID_PARAMETER: "invalid parameter",
    Status.UNREACHABLE: "no way to the peer; do both sides have the same UCX release and settings?",
    Status.INVALID_ADDRESS: "invalid address",
    Status.TRUNCATED: "message longer than its buffer",
    Status.NO_DEVICE: "no such network device",
    Status.CANCELLED: "cancelled",
    Status.TIMED_OUT: "timed out",
    Status.LIMIT: "a limit of the library is passed",
    Status.UNSUPPORTED: "not supported",
    Status.REJECTED: "rejected by the peer; do both sides have the same UCX release and settings?",
    Status.NOT_CONNECTED: "not connected; does anybody listen there?",
    Status.RESET: "connection reset by the peer",
    Status.ENDPOINT_TIMEOUT: "the peer does not answer any more",
}


def describe(status: int) -> str:
    """``connection reset by the peer (UCX -25)``."""
    return (
        f"{_MEANINGS.get(Status(status), 'error')} (UCX {status})"
        if _known(status)
        else (f"error (UCX {status})")
    )


def _known(status: int) -> bool:
    return status in Status._value2member_map_
