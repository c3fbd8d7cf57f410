/* Makes the stand-in for Qualcomm's kernel driver of Debian, which knows few chips, tell another one's number: Mesa's Vulkan
 * driver then compiles for that.
 *
 *     cc -shared -fPIC -O1 -o libadreno_standin.so adreno.c -ldl
 *     ADRENO_STANDIN=650 FD_GPU_ID=660 LD_PRELOAD="./libadreno_standin.so .../libfreedreno_noop_drm_shim.so" \
 *         VK_DRIVER_FILES=.../freedreno_icd.json PROGRAM
 *
 * ADRENO_STANDIN is the number that Mesa has the chip under. Sizes of memory stay those of FD_GPU_ID.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <drm/drm.h>
#include <drm/msm_drm.h>
#include <stdarg.h>
#include <stdlib.h>

int ioctl(int file, unsigned long request, ...)
{
   static int (*next)(int, unsigned long, ...);
   va_list list;
   va_start(list, request);
   void *argument = va_arg(list, void *);
   va_end(list);
   if (!next) next = dlsym(RTLD_NEXT, "ioctl");
   int result = next(file, request, argument);
   const char *chip = getenv("ADRENO_STANDIN");
   if (result || !chip || _IOC_TYPE(request) != DRM_IOCTL_BASE || _IOC_NR(request) != DRM_COMMAND_BASE + DRM_MSM_GET_PARAM)
      return result;
   struct drm_msm_param *asked = argument;
   unsigned number = atoi(chip);
   if (asked->param == MSM_PARAM_GPU_ID) asked->value = number;
   /* A byte each of generation, kind and part; 255, any revision. */
   if (asked->param == MSM_PARAM_CHIP_ID)
      asked->value = number / 100 << 24 | number / 10 % 10 << 16 | number % 10 << 8 | 0xff;
   return result;
}
