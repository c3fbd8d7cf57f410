/* A stand-in for Intel's kernel driver i915: Mesa's Vulkan driver opens a GPU that is not there, and compiles for it.
 *
 *     cc -shared -fPIC -O1 -o libi915_standin.so i915.c -ldl
 *     I915_STANDIN=arc-a770 LD_PRELOAD=./libi915_standin.so VK_DRIVER_FILES=.../intel_icd.json PROGRAM
 *
 * I915_STANDIN is a name of the table `chips` below; any other lists them, and the program ends. The chip's PCI number
 * decides what Mesa compiles for; counts of units and sizes of memory are the product's, near enough. Nothing is executed:
 * a submission is done at once, and a buffer holds what the program wrote into it.
 *
 * How: the render node is a file in memory. Opening /dev/dri/renderD128 makes one, DRM_IOCTL_I915_GEM_MMAP_OFFSET answers
 * with a place in it, so that mmap, dup, fcntl and close need no stand-in; what remains are the ioctls of DRM, the folder
 * /dev/dri, and the few files of /sys by which libdrm recognises a PCI device. All that is answered is in the kernel's
 * public headers (drm/drm.h, drm/i915_drm.h; the package linux-libc-dev).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <drm/drm.h>
#include <drm/i915_drm.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NODE "renderD128"
#define NODE_PATH "/dev/dri/" NODE
#define SYSFS "/sys/dev/char/226:128"
#define PCI_SLOT "0000:00:02.0"
#define GIB (UINT64_C(1) << 30)

struct chip {
   const char *name;
   unsigned id, revision;                  /* of PCI */
   unsigned slices, subslices, units;      /* subslices of a slice, execution units of a subslice */
   unsigned ticks;                         /* of the time stamp in a second */
   unsigned memory;                        /* GiB of its own; 0: it shares the system's */
};

static const struct chip chips[] = {
   {"skylake", 0x1912, 0x06, 1, 3, 8, 12000000, 0},
   {"ice-lake", 0x8a52, 0x07, 1, 8, 8, 12000000, 0},
   {"tiger-lake", 0x9a49, 0x01, 1, 6, 16, 19200000, 0},
   {"alder-lake", 0x4680, 0x0c, 1, 2, 16, 19200000, 0},
   {"arc-a770", 0x56a0, 0x08, 1, 32, 16, 19200000, 16},
   {"meteor-lake", 0x7d55, 0x08, 1, 8, 16, 19200000, 0},
   {"lunar-lake", 0x64a0, 0x04, 1, 8, 8, 19200000, 0},
   {"arc-b580", 0xe20b, 0x00, 1, 20, 8, 19200000, 12},
   {"panther-lake", 0xb080, 0x00, 1, 12, 8, 19200000, 0},
};

static const struct chip *
chip(void)
{
   static const struct chip *chosen;
   const char *name = getenv("I915_STANDIN");
   if (chosen)
      return chosen;
   for (size_t i = 0; i < sizeof(chips) / sizeof(chips[0]); i++)
      if (name && !strcmp(name, chips[i].name))
         return chosen = &chips[i];
   fprintf(stderr, "I915_STANDIN is %s; it takes", name ? name : "not set");
   for (size_t i = 0; i < sizeof(chips) / sizeof(chips[0]); i++)
      fprintf(stderr, " %s", chips[i].name);
   fprintf(stderr, "\n");
   _exit(2);
}

/* The function of this name that the program would have called without the stand-in. */
#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* ---- the file that is the render node, and the buffers in it ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int node = -1;                      /* the file in memory; every opening is a duplicate */
static ino_t node_inode;
static uint64_t node_bytes;
static uint32_t next_handle = 1;
static struct buffer {
   uint64_t offset, size;
} *buffers;

static int
open_node(int flags)
{
   pthread_mutex_lock(&lock);
   if (node < 0) {
      struct stat about;
      node = memfd_create("i915", MFD_CLOEXEC);
      REAL(fstat);
      if (node >= 0 && !real(node, &about))
         node_inode = about.st_ino;
   }
   int copy = node < 0 ? -1 : fcntl(node, flags & O_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, 3);
   pthread_mutex_unlock(&lock);
   return copy;
}

static void
set_node(mode_t *mode, dev_t *device)
{
   *mode = S_IFCHR | 0660;
   *device = makedev(226, 128);
}

/* A buffer's handle; its bytes lie behind all others in the file, and take memory only once they are touched. */
static uint32_t
new_buffer(uint64_t *size)
{
   *size = (*size + 65535) & ~UINT64_C(65535);
   pthread_mutex_lock(&lock);
   uint32_t handle = 0;
   struct buffer *more = realloc(buffers, (next_handle + 1) * sizeof(*buffers));
   if (more && !ftruncate(node, node_bytes + *size)) {
      handle = next_handle++;
      buffers = more;
      buffers[handle] = (struct buffer){node_bytes, *size};
      node_bytes += *size;
   } else if (more) {
      buffers = more;
   }
   pthread_mutex_unlock(&lock);
   return handle;
}

static struct buffer
buffer_of(uint32_t handle)
{
   pthread_mutex_lock(&lock);
   struct buffer found = handle && handle < next_handle ? buffers[handle] : (struct buffer){0, 0};
   pthread_mutex_unlock(&lock);
   return found;
}

static uint32_t
new_number(void)                           /* of a context, an address space or a fence */
{
   static uint32_t last;
   return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

/* ---- ioctls ---- */

static void
text(char *to, __kernel_size_t *length, const char *from)
{
   if (to && *length)
      memcpy(to, from, *length < strlen(from) ? *length : strlen(from));
   *length = strlen(from);
}

static int
version(struct drm_version *v)
{
   v->version_major = 1, v->version_minor = 6, v->version_patchlevel = 0;
   text(v->name, &v->name_len, "i915");
   text(v->date, &v->date_len, "20201103");
   text(v->desc, &v->desc_len, "Intel Graphics, a stand-in");
   return 0;
}

static int
get_cap(struct drm_get_cap *c)
{
   switch (c->capability) {
   case DRM_CAP_PRIME: c->value = DRM_PRIME_CAP_IMPORT | DRM_PRIME_CAP_EXPORT; break;
   case DRM_CAP_TIMESTAMP_MONOTONIC:
   case DRM_CAP_SYNCOBJ:
   case DRM_CAP_SYNCOBJ_TIMELINE: c->value = 1; break;
   default: c->value = 0;
   }
   return 0;
}

static int
getparam(drm_i915_getparam_t *p)
{
   const struct chip *c = chip();
   switch (p->param) {
   case I915_PARAM_CHIPSET_ID: *p->value = c->id; return 0;
   case I915_PARAM_REVISION: *p->value = c->revision; return 0;
   case I915_PARAM_CS_TIMESTAMP_FREQUENCY:
   case I915_PARAM_OA_TIMESTAMP_FREQUENCY: *p->value = c->ticks; return 0;
   case I915_PARAM_SLICE_MASK: *p->value = (1u << c->slices) - 1; return 0;
   case I915_PARAM_SUBSLICE_MASK: *p->value = c->subslices > 31 ? -1 : (int)((1u << c->subslices) - 1); return 0;
   case I915_PARAM_SUBSLICE_TOTAL: *p->value = c->slices * c->subslices; return 0;
   case I915_PARAM_EU_TOTAL: *p->value = c->slices * c->subslices * c->units; return 0;
   case I915_PARAM_HAS_ALIASING_PPGTT: *p->value = I915_GEM_PPGTT_FULL; return 0;
   case I915_PARAM_MMAP_VERSION: *p->value = 1; return 0;
   case I915_PARAM_MMAP_GTT_VERSION: *p->value = 4; return 0;
   case I915_PARAM_NUM_FENCES_AVAIL: *p->value = 32; return 0;
   case I915_PARAM_HAS_LLC: *p->value = c->memory == 0; return 0;
   case I915_PARAM_CMD_PARSER_VERSION: *p->value = 10; return 0;
   case I915_PARAM_PXP_STATUS: errno = ENODEV; return -1;     /* no protected contents */
   case I915_PARAM_PERF_REVISION: errno = EINVAL; return -1;  /* no counters */
   case I915_PARAM_HAS_RELAXED_FENCING:
   case I915_PARAM_HAS_GEM:
   case I915_PARAM_HAS_EXECBUF2:
   case I915_PARAM_HAS_BSD:
   case I915_PARAM_HAS_BLT:
   case I915_PARAM_HAS_RELAXED_DELTA:
   case I915_PARAM_HAS_EXEC_CONSTANTS:
   case I915_PARAM_HAS_WAIT_TIMEOUT:
   case I915_PARAM_HAS_SECURE_BATCHES:
   case I915_PARAM_HAS_PINNED_BATCHES:
   case I915_PARAM_HAS_EXEC_NO_RELOC:
   case I915_PARAM_HAS_EXEC_HANDLE_LUT:
   case I915_PARAM_HAS_COHERENT_RINGS:
   case I915_PARAM_HAS_EXEC_SOFTPIN:
   case I915_PARAM_HAS_EXEC_ASYNC:
   case I915_PARAM_HAS_EXEC_FENCE:
   case I915_PARAM_HAS_EXEC_CAPTURE:
   case I915_PARAM_HAS_EXEC_BATCH_FIRST:
   case I915_PARAM_HAS_EXEC_FENCE_ARRAY:
   case I915_PARAM_HAS_EXEC_SUBMIT_FENCE:
   case I915_PARAM_HAS_EXEC_TIMELINE_FENCES:
   case I915_PARAM_HAS_CONTEXT_ISOLATION:
   case I915_PARAM_HAS_SCHEDULER:
   case I915_PARAM_HAS_USERPTR_PROBE: *p->value = 1; return 0;
   default: *p->value = 0; return 0;
   }
}

/* The masks of slices, of subslices of a slice and of units of a subslice, a bit each, behind one another. */
static int32_t
topology(void *to, int32_t room)
{
   const struct chip *c = chip();
   unsigned a = (c->slices + 7) / 8, b = (c->subslices + 7) / 8, d = (c->units + 7) / 8;
   int32_t need = sizeof(struct drm_i915_query_topology_info) + a + c->slices * (b + c->subslices * d);
   if (room < need)
      return need;
   struct drm_i915_query_topology_info *t = memset(to, 0, need);
   *t = (struct drm_i915_query_topology_info){
      .max_slices = c->slices, .max_subslices = c->subslices, .max_eus_per_subslice = c->units,
      .subslice_offset = a, .subslice_stride = b, .eu_offset = a + c->slices * b, .eu_stride = d,
   };
   for (unsigned s = 0; s < c->slices; s++) {
      t->data[s / 8] |= 1 << s % 8;
      for (unsigned n = 0; n < c->subslices; n++) {
         t->data[a + s * b + n / 8] |= 1 << n % 8;
         for (unsigned u = 0; u < c->units; u++)
            t->data[t->eu_offset + (s * c->subslices + n) * d + u / 8] |= 1 << u % 8;
      }
   }
   return need;
}

static int32_t
engines(void *to, int32_t room)
{
   static const int classes[] = {
      I915_ENGINE_CLASS_RENDER, I915_ENGINE_CLASS_COPY, I915_ENGINE_CLASS_VIDEO, I915_ENGINE_CLASS_VIDEO_ENHANCE,
   };
   const int count = sizeof(classes) / sizeof(classes[0]);
   int32_t need = sizeof(struct drm_i915_query_engine_info) + count * sizeof(struct drm_i915_engine_info);
   if (room < need)
      return need;
   struct drm_i915_query_engine_info *e = memset(to, 0, need);
   e->num_engines = count;
   for (int i = 0; i < count; i++)
      e->engines[i].engine.engine_class = classes[i];
   return need;
}

static int32_t
regions(void *to, int32_t room)
{
   uint64_t own = chip()->memory * GIB;
   int count = own ? 2 : 1;
   int32_t need = sizeof(struct drm_i915_query_memory_regions) + count * sizeof(struct drm_i915_memory_region_info);
   if (room < need)
      return need;
   struct drm_i915_query_memory_regions *r = memset(to, 0, need);
   r->num_regions = count;
   r->regions[0].region.memory_class = I915_MEMORY_CLASS_SYSTEM;
   r->regions[0].probed_size = r->regions[0].unallocated_size = 32 * GIB;
   if (own) {
      r->regions[1].region.memory_class = I915_MEMORY_CLASS_DEVICE;
      r->regions[1].probed_size = r->regions[1].unallocated_size = own;
      r->regions[1].probed_cpu_visible_size = r->regions[1].unallocated_cpu_visible_size = own;
   }
   return need;
}

static int
query(struct drm_i915_query *q)
{
   struct drm_i915_query_item *items = (void *)(uintptr_t)q->items_ptr;
   for (uint32_t i = 0; i < q->num_items; i++) {
      void *to = (void *)(uintptr_t)items[i].data_ptr;
      int32_t room = items[i].length, length;
      switch (items[i].query_id) {
      case DRM_I915_QUERY_TOPOLOGY_INFO:
      case DRM_I915_QUERY_GEOMETRY_SUBSLICES: length = topology(to, room); break;
      case DRM_I915_QUERY_ENGINE_INFO: length = engines(to, room); break;
      case DRM_I915_QUERY_MEMORY_REGIONS: length = regions(to, room); break;
      default: length = -EINVAL;           /* HWCONFIG and others that drivers do without */
      }
      items[i].length = room && room < length ? -EINVAL : length;
   }
   return 0;
}

static int
context_getparam(struct drm_i915_gem_context_param *p)
{
   if (p->param == I915_CONTEXT_PARAM_GTT_SIZE)
      p->value = UINT64_C(1) << 48;
   else if (p->param == I915_CONTEXT_PARAM_VM)
      p->value = new_number();
   else
      p->value = 0;
   return 0;
}

static int
created(uint32_t handle, uint32_t *to)
{
   *to = handle;
   if (!handle)
      errno = ENOMEM;
   return handle ? 0 : -1;
}

/* The place of a buffer in the file, which mmap of the render node takes. */
static int
mmap_offset(struct drm_i915_gem_mmap_offset *m)
{
   struct buffer found = buffer_of(m->handle);
   m->offset = found.offset;
   errno = ENOENT;
   return found.size ? 0 : -1;
}

static int
gem_close(uint32_t handle)
{
   struct buffer found = buffer_of(handle);
   errno = EINVAL;
   if (!found.size)
      return -1;
   fallocate(node, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, found.offset, found.size);
   buffers[handle].size = 0;
   return 0;
}

/* A file for a fence that has been passed. */
static int
fence_file(int *to)
{
   *to = memfd_create("fence", MFD_CLOEXEC);
   return *to < 0 ? -1 : 0;
}

static int
answer(unsigned long request, void *a)
{
   switch (_IOC_NR(request)) {
   case _IOC_NR(DRM_IOCTL_VERSION): return version(a);
   case _IOC_NR(DRM_IOCTL_GET_CAP): return get_cap(a);
   case _IOC_NR(DRM_IOCTL_GEM_CLOSE): return gem_close(((struct drm_gem_close *)a)->handle);

   /* All work is done when it is submitted, so every fence has been passed. */
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_CREATE): ((struct drm_syncobj_create *)a)->handle = new_number(); return 0;
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD): return fence_file(&((struct drm_syncobj_handle *)a)->fd);
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE): ((struct drm_syncobj_handle *)a)->handle = new_number(); return 0;
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_QUERY): {
      struct drm_syncobj_timeline_array *t = a;
      uint64_t *points = (void *)(uintptr_t)t->points;
      for (uint32_t i = 0; i < t->count_handles; i++)
         points[i] = INT64_MAX;
      return 0;
   }
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_DESTROY):
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_WAIT):
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_RESET):
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_SIGNAL):
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT):
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL):
   case _IOC_NR(DRM_IOCTL_SYNCOBJ_TRANSFER): return 0;

   case DRM_COMMAND_BASE + DRM_I915_GETPARAM: return getparam(a);
   case DRM_COMMAND_BASE + DRM_I915_QUERY: return query(a);
   case DRM_COMMAND_BASE + DRM_I915_GEM_GET_APERTURE: {
      struct drm_i915_gem_get_aperture *g = a;
      g->aper_size = g->aper_available_size = 4 * GIB;
      return 0;
   }
   case DRM_COMMAND_BASE + DRM_I915_GEM_CREATE: {
      struct drm_i915_gem_create *g = a;
      uint64_t size = g->size;
      uint32_t handle = new_buffer(&size);
      g->size = size;
      return created(handle, &g->handle);
   }
   case DRM_COMMAND_BASE + DRM_I915_GEM_CREATE_EXT: {
      struct drm_i915_gem_create_ext *g = a;
      uint64_t size = g->size;
      uint32_t handle = new_buffer(&size);
      g->size = size;
      return created(handle, &g->handle);
   }
   case DRM_COMMAND_BASE + DRM_I915_GEM_USERPTR: {
      struct drm_i915_gem_userptr *g = a;
      uint64_t size = g->user_size;
      return created(new_buffer(&size), &g->handle);
   }
   case DRM_COMMAND_BASE + DRM_I915_GEM_MMAP_GTT: return mmap_offset(a);   /* and GEM_MMAP_OFFSET */
   case DRM_COMMAND_BASE + DRM_I915_GEM_CONTEXT_CREATE:
      ((struct drm_i915_gem_context_create *)a)->ctx_id = new_number();
      return 0;
   case DRM_COMMAND_BASE + DRM_I915_GEM_CONTEXT_GETPARAM: return context_getparam(a);
   case DRM_COMMAND_BASE + DRM_I915_GEM_VM_CREATE:
      ((struct drm_i915_gem_vm_control *)a)->vm_id = new_number();
      return 0;
   case DRM_COMMAND_BASE + DRM_I915_GEM_MADVISE: ((struct drm_i915_gem_madvise *)a)->retained = 1; return 0;
   case DRM_COMMAND_BASE + DRM_I915_GEM_BUSY: ((struct drm_i915_gem_busy *)a)->busy = 0; return 0;
   case DRM_COMMAND_BASE + DRM_I915_REG_READ: ((struct drm_i915_reg_read *)a)->val = 0; return 0;
   case DRM_COMMAND_BASE + DRM_I915_GET_RESET_STATS: {
      struct drm_i915_reset_stats *r = a;
      r->reset_count = r->batch_active = r->batch_pending = 0;
      return 0;
   }
   case DRM_COMMAND_BASE + DRM_I915_GEM_EXECBUFFER2: {
      struct drm_i915_gem_execbuffer2 *e = a;
      int fence = -1;
      if (!(e->flags & I915_EXEC_FENCE_OUT))
         return 0;
      if (fence_file(&fence))
         return -1;
      e->rsvd2 = (e->rsvd2 & UINT32_MAX) | (uint64_t)fence << 32;
      return 0;
   }
   case DRM_COMMAND_BASE + DRM_I915_GEM_CONTEXT_SETPARAM:
   case DRM_COMMAND_BASE + DRM_I915_GEM_CONTEXT_DESTROY:
   case DRM_COMMAND_BASE + DRM_I915_GEM_VM_DESTROY:
   case DRM_COMMAND_BASE + DRM_I915_GEM_SET_CACHING:
   case DRM_COMMAND_BASE + DRM_I915_GEM_SET_DOMAIN:
   case DRM_COMMAND_BASE + DRM_I915_GEM_SET_TILING:
   case DRM_COMMAND_BASE + DRM_I915_GEM_WAIT: return 0;
   default:
      if (getenv("I915_STANDIN_DEBUG"))
         fprintf(stderr, "i915 stand-in: ioctl 0x%x is not answered\n", (unsigned)_IOC_NR(request));
      errno = EINVAL;
      return -1;
   }
}

int
ioctl(int fd, unsigned long request, ...)
{
   va_list rest;
   va_start(rest, request);
   void *a = va_arg(rest, void *);
   va_end(rest);
   if (_IOC_TYPE(request) == DRM_IOCTL_BASE)
      return answer(request, a);
   REAL(ioctl);
   return real(fd, request, a);
}

/* ---- files ---- */

/* The contents of a file of the device in /sys; false: the stand-in has none of this name. */
static bool
sysfs_file(const char *path, char *to, size_t room)
{
   static const char folder[] = SYSFS "/device/";
   const struct chip *c = chip();
   if (strncmp(path, folder, sizeof(folder) - 1))
      return false;
   const char *name = path + sizeof(folder) - 1;
   if (!strcmp(name, "uevent"))
      snprintf(to, room, "DRIVER=i915\nPCI_CLASS=30000\nPCI_ID=8086:%04X\nPCI_SLOT_NAME=" PCI_SLOT "\n", c->id);
   else if (!strcmp(name, "vendor") || !strcmp(name, "subsystem_vendor"))
      snprintf(to, room, "0x8086\n");
   else if (!strcmp(name, "device") || !strcmp(name, "subsystem_device"))
      snprintf(to, room, "0x%04x\n", c->id);
   else if (!strcmp(name, "revision"))
      snprintf(to, room, "0x%02x\n", c->revision);
   else
      return false;
   return true;
}

/* A file in memory with these contents. */
static int
open_text(const char *contents)
{
   int fd = memfd_create("sysfs", MFD_CLOEXEC);
   if (fd >= 0 && (write(fd, contents, strlen(contents)) < 0 || lseek(fd, 0, SEEK_SET) < 0)) {
      close(fd);
      return -1;
   }
   return fd;
}

/* What opening one of the stand-in's files answers; -2: the path is none of them. */
static int
open_own(const char *path, int flags)
{
   char contents[256];
   if (!strcmp(path, NODE_PATH))
      return open_node(flags);
   return sysfs_file(path, contents, sizeof(contents)) ? open_text(contents) : -2;
}

#define OPEN(name)                                                   \
   int name(const char *path, int flags, ...)                        \
   {                                                                 \
      va_list rest;                                                  \
      va_start(rest, flags);                                         \
      mode_t mode = va_arg(rest, mode_t);                            \
      va_end(rest);                                                  \
      int own = open_own(path, flags);                               \
      REAL(name);                                                    \
      return own == -2 ? real(path, flags, mode) : own;              \
   }
OPEN(open)
OPEN(open64)

#define FOPEN(name)                                                  \
   FILE *name(const char *path, const char *mode)                    \
   {                                                                 \
      char contents[256];                                            \
      REAL(name);                                                    \
      if (!sysfs_file(path, contents, sizeof(contents)))             \
         return real(path, mode);                                    \
      int fd = open_text(contents);                                  \
      return fd < 0 ? NULL : fdopen(fd, "r");                        \
   }
FOPEN(fopen)
FOPEN(fopen64)

#define STAT(name, kind)                                             \
   int name(const char *path, struct kind *about)                    \
   {                                                                 \
      REAL(name);                                                    \
      bool folder = !strcmp(path, SYSFS "/device/drm");              \
      if (!folder && strcmp(path, NODE_PATH))                        \
         return real(path, about);                                   \
      memset(about, 0, sizeof(*about));                              \
      set_node(&about->st_mode, &about->st_rdev);                    \
      if (folder)  /* by it libdrm knows the node for one of DRM's */ \
         about->st_mode = S_IFDIR | 0755;                            \
      return 0;                                                      \
   }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)

#define FSTAT(name, kind)                                            \
   int name(int fd, struct kind *about)                              \
   {                                                                 \
      REAL(name);                                                    \
      int status = real(fd, about);                                  \
      if (!status && node >= 0 && about->st_ino == node_inode && S_ISREG(about->st_mode)) \
         set_node(&about->st_mode, &about->st_rdev);                 \
      return status;                                                 \
   }
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)

int
access(const char *path, int mode)
{
   char contents[256];
   REAL(access);
   if (!strcmp(path, NODE_PATH) || !strcmp(path, SYSFS "/device") || sysfs_file(path, contents, sizeof(contents)))
      return 0;
   return real(path, mode);
}

ssize_t
readlink(const char *path, char *to, size_t room)
{
   static const char bus[] = "/sys/bus/pci";
   REAL(readlink);
   if (strcmp(path, SYSFS "/device/subsystem"))
      return real(path, to, room);
   size_t length = room < sizeof(bus) - 1 ? room : sizeof(bus) - 1;
   memcpy(to, bus, length);
   return length;
}

char *
realpath(const char *path, char *to)
{
   REAL(realpath);
   if (strcmp(path, SYSFS "/device"))
      return real(path, to);
   return to ? strcpy(to, path) : strdup(path);
}

/* /dev/dri has one entry. A listing is told by its address, and is a real one of a folder that exists. */
static DIR *listing;
static int listed;

DIR *
opendir(const char *path)
{
   REAL(opendir);
   if (strcmp(path, "/dev/dri"))
      return real(path);
   listed = 0;
   return listing = real("/");
}

static bool
entry(DIR *of, char *name, unsigned char *type)
{
   if (listed++)
      return false;
   strcpy(name, NODE);
   *type = DT_CHR;
   return true;
}

#define READDIR(name, kind)                                          \
   struct kind *name(DIR *of)                                        \
   {                                                                 \
      static struct kind only;                                       \
      REAL(name);                                                    \
      if (of != listing)                                     \
         return real(of);                                            \
      return entry(of, only.d_name, &only.d_type) ? &only : NULL;    \
   }
READDIR(readdir, dirent)
READDIR(readdir64, dirent64)

int
closedir(DIR *of)
{
   REAL(closedir);
   if (of == listing)
      listing = NULL;
   return real(of);
}
